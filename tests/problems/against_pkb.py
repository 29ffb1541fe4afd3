"""Our references beside those of a checkout of ParallelKernelBench, on its own inputs (`python -m
tests.problems.against_pkb CHECKOUT`): the same number is the same workload. Real processes, float32; on gloo some of
PKB's own do not run, with `--cuda` all do.

Prints a line for each problem; ends with 1 if outputs of any differ.
"""

import argparse
import multiprocessing
import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.groups import Groups
from harness.ring import clone
from problems import catalogue
from problems.catalogue import Entry
from problems.spec import Case, RankContext

TOLERANCE = 2e-4
"""Relative to the largest element of an output."""


def run_rank(
    rank: int, world_size: int, size: int, found: list[Entry], cuda: bool, listener: socket.socket, folder: Path
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    port, descriptor = listener.getsockname()[1], listener.detach()
    store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0, master_listen_fd=descriptor if rank == 0 else None)
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=world_size)
    groups, results = Groups(), {}
    case = Case("pkb", {"m": size, "n": size})
    for entry in found:
        try:
            results[entry.number] = compare(entry, case, rank, world_size, groups, device)
        except Exception:
            results[entry.number] = traceback.format_exc().strip().splitlines()[-1]
        torch.save(results, folder / f"{rank}.pt")


def compare(entry: Entry, case: Case, rank: int, world_size: int, groups: Groups, device: torch.device) -> str:
    """What differs, or nothing."""
    theirs, ours = catalogue.load(entry.number, entry.suite), catalogue.load(entry.number)
    ctx = RankContext(seed=20261121, rank=rank, world_size=world_size, dtype=torch.float32, device=device)
    arguments = theirs.inputs(case, ctx)
    one, other = (groups.materialise(clone(arguments)) for _ in range(2))
    expected = clone(theirs.reference(*one))
    with torch.no_grad():
        got = ours.reference(*other)
    if ours.updates:
        expected, got = ((out, [args[i] for i in ours.updates]) for out, args in ((expected, one), (got, other)))
    return difference(got, expected, "out")


def difference(got: Any, expected: Any, path: str) -> str:
    if isinstance(expected, torch.Tensor):
        if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
            return f"{path}: {getattr(got, 'shape', got)} for {tuple(expected.shape)}"
        wide = torch.complex128 if expected.is_complex() else torch.float64
        a, b = got.to(wide), expected.to(wide)
        error = float((a - b).abs().nan_to_num(0, 0, 0).max()) if a.numel() else 0.0
        scale = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
        exact = not (expected.is_floating_point() or expected.is_complex())
        dtype = "" if got.dtype == expected.dtype else f"{path}: {got.dtype} for {expected.dtype}; "
        wrong = error > 0 if exact else error > TOLERANCE * scale
        return dtype + (f"{path}: off by {error:.3g} of {scale:.3g}" if wrong else "")
    if isinstance(expected, dict):
        return "; ".join(filter(None, (difference(got.get(k), v, f"{path}[{k}]") for k, v in expected.items())))
    if isinstance(expected, (tuple, list)):
        if len(got) != len(expected):
            return f"{path}: {len(got)} for {len(expected)} items"
        pairs = enumerate(zip(got, expected, strict=True))
        return "; ".join(filter(None, (difference(a, b, f"{path}[{i}]") for i, (a, b) in pairs)))
    return "" if got == expected else f"{path}: {got!r} for {expected!r}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.problems.against_pkb", description=__doc__.splitlines()[0])
    parser.add_argument("checkout")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--size", type=int, default=128, help="PKB's M and N")
    parser.add_argument("--cuda", action="store_true", help="on GPUs, with NCCL")
    parser.add_argument("--only", type=int, nargs="+")
    parser.add_argument("--timeout", type=float, default=900)
    given = parser.parse_args()
    found = [e for e in catalogue.entries(given.checkout) if not given.only or e.number in given.only]
    folder, fork = Path(tempfile.mkdtemp()), multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        common = (given.world_size, given.size, found, given.cuda, listener, folder)
        ranks = [fork.Process(target=run_rank, args=(rank, *common), daemon=True) for rank in range(given.world_size)]
        for process in ranks:
            process.start()
    for process in ranks:
        process.join(given.timeout)
        process.kill()
    results = [torch.load(folder / f"{rank}.pt") for rank in range(given.world_size)]
    bad = 0
    for entry in found:
        said = {result.get(entry.number, "not reached") for result in results}
        bad += said != {""}
        print(f"{entry.number:3} {entry.name:45} {'the same' if said == {''} else ' | '.join(sorted(said))[:300]}")
    print(f"{len(found) - bad} of {len(found)} the same, {given.world_size} ranks, M = N = {given.size}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
