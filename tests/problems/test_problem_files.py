"""Every problem file against its contract, and every reference against an oracle that sees all ranks at once."""

import math
import multiprocessing
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from problems.catalogue import Entry, entries, load, statement
from problems.spec import Arguments, Case, RankContext

ENTRIES = entries()
ROOT = Path(__file__).parents[2]
WORLD_SIZES = (2, 3, 4, 8)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
JOIN_S = 60.0

each_problem = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.path.stem)


def draw(entry: Entry, case: str, rank: int, world_size: int, trial: int = 0, dtype: str = "float32") -> Arguments:
    ctx = RankContext(seed=7919 + trial, rank=rank, world_size=world_size, dtype=DTYPES[dtype], device="cpu")
    return load(entry.number).inputs(entry.cases[case], ctx)


def tensors(arguments: Arguments) -> list[torch.Tensor]:
    return [argument for argument in arguments if isinstance(argument, torch.Tensor)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


# Oracles: all ranks' arguments in, all ranks' expected outputs out. Written from the specifications, in float64.

Oracle = Callable[[list[Arguments]], list[torch.Tensor]]


def everyone(result: torch.Tensor, ranks: list[Arguments]) -> list[torch.Tensor]:
    return [result] * len(ranks)


def stack_of(ranks: list[Arguments]) -> torch.Tensor:
    return torch.stack([arguments[0] for arguments in ranks])


def reduce_oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    dst = ranks[0][1]
    return [stack_of(ranks).sum(0) if rank == dst else own for rank, (own, _) in enumerate(ranks)]


def gather_oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    dst = ranks[0][1]
    return [stack_of(ranks) if rank == dst else own for rank, (own, _) in enumerate(ranks)]


def row_blocks(total: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    rows = total.shape[0] // world_size
    return [total[rank * rows : (rank + 1) * rows] for rank in range(world_size)]


def summed_products(ranks: list[Arguments]) -> torch.Tensor:
    # One product over the whole inner axis, instead of a sum of products.
    return torch.cat([a for a, _ in ranks], dim=1) @ torch.cat([b for _, b in ranks], dim=0)


def rms_norm_oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole = torch.cat([hidden for hidden, _, _ in ranks], dim=1)
    weight = torch.cat([local for _, local, _ in ranks])
    normed = weight * whole / torch.sqrt(whole.pow(2).mean(1, keepdim=True) + ranks[0][2])
    return list(normed.chunk(len(ranks), dim=1))


def ulysses_oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    _, scatter, gather = ranks[0]
    size = ranks[0][0].shape[scatter] // len(ranks)
    return [
        torch.cat([x.narrow(scatter, rank * size, size) for x, _, _ in ranks], dim=gather) for rank in range(len(ranks))
    ]


ORACLES: dict[int, Oracle] = {
    1: lambda ranks: everyone(stack_of(ranks).sum(0), ranks),
    2: lambda ranks: everyone(stack_of(ranks), ranks),
    3: lambda ranks: everyone(ranks[ranks[0][1]][0], ranks),
    4: reduce_oracle,
    5: lambda ranks: list(ranks[ranks[0][1]][0].unbind(0)),
    6: gather_oracle,
    7: lambda ranks: row_blocks(stack_of(ranks).sum(0), len(ranks)),
    8: lambda ranks: list(stack_of(ranks).transpose(0, 1).unbind(0)),
    13: lambda ranks: everyone(summed_products(ranks), ranks),
    16: lambda ranks: row_blocks(summed_products(ranks), len(ranks)),
    18: rms_norm_oracle,
    33: ulysses_oracle,
}


# Real runs: one fork of `world_size` gloo processes runs every problem in every dtype.


@dataclass(frozen=True)
class Runs:
    """What the references returned: `results[rank][number, dtype]` is (output, whether the inputs were left alone)."""

    world_size: int
    results: list[dict[tuple[int, str], tuple[torch.Tensor, bool]]]


def run_rank(rank: int, world_size: int, listener: socket.socket, folder: Path) -> None:
    torch.set_num_threads(1)  # the parent's thread pool did not survive the fork
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    port, descriptor = listener.getsockname()[1], listener.detach()
    store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0, master_listen_fd=descriptor if rank == 0 else None)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    results = {}
    for entry in ENTRIES:
        for dtype in DTYPES:
            arguments = draw(entry, "tiny", rank, world_size, dtype=dtype)
            before = [tensor.clone() for tensor in tensors(arguments)]
            output = load(entry.number).reference(*arguments)
            unchanged = all(map(same_bits, before, tensors(arguments)))
            results[entry.number, dtype] = output, unchanged
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 3], ids=["W2", "W3"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    world_size: int = request.param
    folder = tmp_path_factory.mktemp("runs")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fork = multiprocessing.get_context("fork")
        ranks = [
            fork.Process(target=run_rank, args=(rank, world_size, listener, folder), daemon=True)
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
    try:
        for process in ranks:
            process.join(JOIN_S)
        assert [process.exitcode for process in ranks] == [0] * world_size, "a rank failed or hung: see its stderr"
    finally:
        for process in ranks:
            process.kill()
            process.join(JOIN_S)
    return Runs(world_size, [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world_size)])


@each_problem
@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_agrees_with_a_global_view(entry: Entry, runs: Runs, dtype: str) -> None:
    arguments = [draw(entry, "tiny", rank, runs.world_size, dtype=dtype) for rank in range(runs.world_size)]
    wide = [tuple(a.double() if isinstance(a, torch.Tensor) else a for a in own) for own in arguments]
    for rank, expected in enumerate(ORACLES[entry.number](wide)):
        output, _ = runs.results[rank][entry.number, dtype]
        assert output.dtype == DTYPES[dtype]
        assert output.shape == expected.shape
        assert output.is_contiguous()
        if entry.tolerance == "exact":
            assert same_bits(output, expected.to(output.dtype).contiguous()), f"rank {rank}"
        else:
            # Per row, because rows may differ in scale by decades.
            bound = 8 * torch.finfo(output.dtype).eps * expected.abs().amax(-1, keepdim=True)
            assert bool(((output.double() - expected).abs() <= bound).all()), f"rank {rank}"


@each_problem
def test_reference_leaves_its_inputs_alone(entry: Entry, runs: Runs) -> None:
    for result in runs.results:
        assert all(result[entry.number, dtype][1] for dtype in DTYPES)


# The files themselves.


def test_listing_and_statements_import_no_torch() -> None:
    code = (
        "import sys\n"
        "from problems.catalogue import entries, find, select_case, statement\n"
        "for entry in entries():\n"
        "    assert find(entry.number) == entry and statement(entry) and select_case(entry, 'pkb')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=30)


def test_numbers_are_unique_and_have_an_oracle() -> None:
    assert [entry.number for entry in ENTRIES] == sorted(ORACLES)


@each_problem
def test_declaration_read_by_ast_is_the_loaded_one(entry: Entry) -> None:
    problem = load(entry.number)
    assert entry.path.stem == f"p{entry.number:02d}_{entry.name}"
    assert (entry.title, entry.family, entry.source) == (problem.title, problem.family, problem.source)
    assert (entry.tags, entry.tolerance) == (problem.tags, problem.tolerance)
    assert entry.cases == {name: Case(name, sizes) for name, sizes in problem.cases.items()}
    assert set(entry.cases) >= {"pkb", "large", "odd", "tiny"}


@each_problem
def test_statement_stands_alone_and_hides_the_rest(entry: Entry) -> None:
    text = statement(entry)
    assert "\ndef reference(" in text
    assert not re.search(r"def (inputs|work|illegal)|PROBLEM|problems\.", text)
    module: dict[str, object] = {}
    exec(compile(text, entry.path.stem, "exec"), module)
    assert callable(module["reference"])


@each_problem
@pytest.mark.parametrize("case", ["pkb", "odd", "tiny"])
def test_inputs_follow_the_seed_the_rank_and_the_trial(entry: Entry, case: str) -> None:
    first = tensors(draw(entry, case, rank=0, world_size=2))
    again, other_rank, other_trial = (
        tensors(draw(entry, case, rank, 2, trial)) for rank, trial in ((0, 0), (1, 0), (0, 1))
    )
    for index, tensor in enumerate(first):
        assert same_bits(tensor, again[index])
        assert not same_bits(tensor, other_rank[index])
        assert not same_bits(tensor, other_trial[index])


@each_problem
def test_inputs_are_never_constant_along_an_axis(entry: Entry) -> None:
    for rank in range(3):
        for tensor in tensors(draw(entry, "tiny", rank, world_size=3)):
            assert bool(tensor.isfinite().all())
            for axis, length in enumerate(tensor.shape):
                slices = tensor.unique(dim=axis)
                assert slices.shape[axis] == length, f"axis {axis} repeats values"


@each_problem
def test_non_tensor_arguments_agree_between_ranks(entry: Entry) -> None:
    for trial in range(3):
        drawn = [draw(entry, "tiny", rank, 3, trial) for rank in range(3)]
        plain = {tuple(a for a in arguments if not isinstance(a, torch.Tensor)) for arguments in drawn}
        assert len(plain) == 1


@each_problem
def test_tiny_and_odd_run_at_every_world_size(entry: Entry) -> None:
    illegal = load(entry.number).illegal
    for world_size in (1, *WORLD_SIZES):
        assert illegal(entry.cases["tiny"], world_size) is None
        assert illegal(entry.cases["odd"], world_size) is None


@each_problem
def test_work_is_positive_and_finite(entry: Entry) -> None:
    problem = load(entry.number)
    for case in entry.cases.values():
        for world_size in WORLD_SIZES:
            if problem.illegal(case, world_size):
                continue
            work = problem.work(case, world_size, 2)
            parts = (work.flops, work.hbm_bytes, work.link_out_bytes, work.link_in_bytes)
            assert all(math.isfinite(part) and part >= 0 for part in parts)
            assert min(parts[1:]) > 0
            wider = problem.work(case, world_size, 4)
            assert (wider.hbm_bytes, wider.link_in_bytes) == (2 * work.hbm_bytes, 2 * work.link_in_bytes)


@each_problem
def test_one_rank_has_no_link_traffic(entry: Entry) -> None:
    work = load(entry.number).work(entry.cases["tiny"], 1, 2)
    assert (work.link_out_bytes, work.link_in_bytes) == (0, 0)


# What single problems promise about their inputs.


@pytest.mark.parametrize("entry", [e for e in ENTRIES if "rooted" in e.tags], ids=lambda entry: entry.name)
def test_root_is_published_at_pkb_and_moves_elsewhere(entry: Entry) -> None:
    assert draw(entry, "pkb", 0, 2, trial=1)[1] == 0
    assert {draw(entry, "tiny", 0, 4, trial)[1] for trial in range(40)} == {0, 1, 2, 3}


def test_ulysses_swaps_axes_in_both_directions() -> None:
    (entry,) = (entry for entry in ENTRIES if entry.number == 33)
    assert {draw(entry, "odd", 0, 3, trial)[1:] for trial in range(20)} == {(0, 1), (1, 0)}
    assert draw(entry, "pkb", 0, 2, trial=1)[1:] == (0, 1)


def test_rms_norm_rows_span_decades_and_one_is_zero_on_every_rank() -> None:
    (entry,) = (entry for entry in ENTRIES if entry.number == 18)
    rows = [draw(entry, "odd", rank, 2)[0].abs().amax(1) for rank in range(2)]
    assert (rows[0] == 0).nonzero().tolist() == (rows[1] == 0).nonzero().tolist() != []
    used = rows[0][rows[0] > 0]
    assert used.max() / used.min() > 1e5


@pytest.mark.parametrize(
    ("number", "case", "world_size", "reason"),
    [
        (16, "pkb", 3, "m=1024 does not divide evenly over 3 ranks"),
        (16, "tiny", 27, "k=26 leaves nothing to multiply on each of 27 ranks"),
        (33, "pkb", 3, "m=1024 does not divide evenly over 3 ranks"),
    ],
)
def test_illegal_says_why(number: int, case: str, world_size: int, reason: str) -> None:
    problem = load(number)
    assert problem.illegal(Case(case, problem.cases[case]), world_size) == reason
