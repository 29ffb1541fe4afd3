"""Every problem file against its contract, and every reference against an oracle that sees all ranks at once."""

import math
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.groups import Groups
from problems.catalogue import Entry, entries, load, statement
from problems.spec import Arguments, Case, RankContext, Subgroups
from tests.problems import answers
from tests.problems.threads import answer, cast, cloned, leaves, tensors, unsure

ENTRIES = entries()
ROOT = Path(__file__).parents[2]
WORLD_SIZES = (2, 3, 4, 5, 6, 7, 8)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
NEAR = {torch.float16: 0.03, torch.bfloat16: 0.1, torch.float32: 1e-3, torch.float64: 1e-9}
"""How far a reference may be from its oracle in the run's dtype, in RMS: a check of its steps. Rounding is judged in
test_numerics_problems.py."""
JOIN_S = 120.0

each_problem = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.path.stem)
pytestmark = pytest.mark.usefixtures("one_thread")


def draw(entry: Entry, case: str, rank: int, world_size: int, trial: int = 0, dtype: str = "float32") -> Arguments:
    ctx = RankContext(seed=7919 + trial, rank=rank, world_size=world_size, dtype=DTYPES[dtype], device="cpu")
    return load(entry.number).inputs(entry.cases[case], ctx)


def legal(entry: Entry, case: str, world_size: int) -> bool:
    return load(entry.number).illegal(entry.cases[case], world_size) is None


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


# Real runs: one fork of `world_size` gloo processes runs every problem in every dtype.


@dataclass(frozen=True)
class Runs:
    """What the references returned: `results[rank][number, dtype]` is (answer, whether the inputs were left alone), or
    the text of an error."""

    world_size: int
    results: list[dict[tuple[int, str], Any]]


def run_rank(rank: int, world_size: int, listener: socket.socket, folder: Path) -> None:
    torch.set_num_threads(1)  # the parent's thread pool did not survive the fork
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    port, descriptor = listener.getsockname()[1], listener.detach()
    store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0, master_listen_fd=descriptor if rank == 0 else None)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    groups, results = Groups(), {}
    for entry in ENTRIES:
        if not legal(entry, "tiny", world_size):
            continue
        for dtype in DTYPES:
            try:
                results[entry.number, dtype] = run_one(entry, dtype, rank, world_size, groups)
            except Exception:  # the other ranks may now wait for ever
                results[entry.number, dtype] = traceback.format_exc()
                torch.save(results, folder / f"{rank}.pt")
                os._exit(1)
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


def run_one(entry: Entry, dtype: str, rank: int, world_size: int, groups: Groups) -> tuple[Any, bool]:
    problem = load(entry.number)
    arguments = cloned(draw(entry, "tiny", rank, world_size, dtype=dtype))
    before = [tensors(argument) for argument in cloned(arguments)]
    with torch.no_grad():
        output = problem.reference(*groups.materialise(arguments))
    unchanged = all(
        same_bits(old, new)
        for i, argument in enumerate(arguments)
        if i not in problem.updates
        for old, new in zip(before[i], tensors(argument), strict=True)
    )
    return answer(problem, output, arguments), unchanged


@pytest.fixture(scope="module", params=[2, 3, 4], ids=["W2", "W3", "W4"])
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
        ranks[0].join(JOIN_S)
        for process in ranks[1:]:
            process.join(5)
    finally:
        for process in ranks:
            process.kill()
            process.join(JOIN_S)
    found = [folder / f"{rank}.pt" for rank in range(world_size)]
    return Runs(world_size, [torch.load(path, weights_only=True) if path.exists() else {} for path in found])


@each_problem
@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_agrees_with_a_global_view(entry: Entry, runs: Runs, dtype: str) -> None:
    if not legal(entry, "tiny", runs.world_size):
        pytest.skip("cannot run on so many ranks")
    arguments = [draw(entry, "tiny", rank, runs.world_size, dtype=dtype) for rank in range(runs.world_size)]
    known, key = answers.of(entry.number), (entry.number, dtype)
    for result in runs.results:
        assert not isinstance(result.get(key), str), result[key]
    assert all(key in result for result in runs.results), "the rank failed or hung at this problem or an earlier one"
    oracles = known.oracle([cast(own, torch.float64) for own in arguments])
    masks = unsure(entry, oracles, arguments)
    for rank, expected in enumerate(oracles):
        got, unchanged = runs.results[rank][key]
        assert unchanged, "an input has changed"
        agree(got, expected, masks[rank], entry, known, f"rank {rank}")


def agree(got: Any, expected: Any, mask: Any, entry: Entry, known: Any, where: str) -> None:
    """Structure and shapes are the same, and values within `NEAR`, in float64 within `RTOL` of each element."""
    if isinstance(expected, dict):
        assert list(got) == list(expected), where
        for key in expected:
            agree(got[key], expected[key], None if mask is None else mask[key], entry, known, f"{where}[{key}]")
    elif isinstance(expected, (tuple, list)):
        assert len(got) == len(expected), where
        for i, (a, b) in enumerate(zip(got, expected, strict=True)):
            agree(a, b, None if mask is None else mask[i], entry, known, f"{where}[{i}]")
    elif not isinstance(expected, torch.Tensor):
        assert got == expected, where
    else:
        assert got.shape == expected.shape, where
        assert got.is_contiguous(), where
        if got.is_complex():
            assert bool(torch.view_as_real(got).isfinite().all()), where
        else:
            # Infinity is right where the oracle has the same: the log-probability of what a filter has removed.
            a, b = got.double(), expected.double()
            fine = (a.isfinite() & b.isfinite()) | (a == b)
            assert bool((fine if mask is None else fine | mask).all()), where
        if not (got.is_floating_point() or got.is_complex()) or entry.tolerance == "exact":
            different = got != expected.to(got.dtype)
            assert not (different if mask is None else different & ~mask).any(), where
            return
        wide = torch.complex128 if got.is_complex() else torch.float64
        error, scale = (got.to(wide) - expected.to(wide)).abs(), expected.to(wide).abs()
        judged = scale.isfinite() if mask is None else scale.isfinite() & ~mask
        error, scale = error[judged], scale[judged]
        if error.numel() == 0:
            return
        exact = got.dtype in (torch.float64, torch.complex128)
        # Per row where rows have a scale of their own.
        if exact:
            assert float(error.max()) <= getattr(known, "RTOL", 1e-11) * float(scale.max()) + 1e-300, where
        else:
            near = NEAR.get(got.dtype, 1e-3)
            assert float(error.norm()) <= near * float(scale.norm()) + 1e-30, where


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


@each_problem
def test_declaration_read_by_ast_is_the_loaded_one(entry: Entry) -> None:
    problem = load(entry.number)
    assert entry.path.stem == f"p{entry.number:02d}_{entry.name}"
    assert (entry.title, entry.family, entry.source) == (problem.title, problem.family, problem.source)
    assert (entry.tags, entry.tolerance, entry.repair) == (problem.tags, problem.tolerance, problem.repair)
    assert entry.cases == {name: Case(name, sizes) for name, sizes in problem.cases.items()}
    assert set(entry.cases) >= {"pkb", "large", "odd", "tiny"}
    assert ("default" in entry.cases) == bool(entry.repair), "a default case of its own has a reason, and only then"


@each_problem
def test_statement_stands_alone_and_hides_the_rest(entry: Entry) -> None:
    text = statement(entry)
    assert "\ndef reference(" in text
    assert not re.search(r"def (inputs|work|illegal|unsure|canonical)|PROBLEM|problems\.", text)
    module: dict[str, object] = {}
    exec(compile(text, entry.path.stem, "exec"), module)
    assert callable(module["reference"])


@each_problem
@pytest.mark.parametrize("case", ["odd", "tiny"])
def test_inputs_follow_the_seed_the_rank_and_the_trial(entry: Entry, case: str) -> None:
    first, again, other_rank, other_trial = (
        draw(entry, case, rank, 2, trial) for rank, trial in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    fixed = getattr(answers.of(entry.number), "FIXED", {})
    assert all(map(same_bits, tensors(first), tensors(again)))
    assert not all(map(same_bits, tensors(first), tensors(other_rank)))
    for i, (own, other) in enumerate(zip(first, other_trial, strict=True)):
        for a, b in zip(tensors(own), tensors(other), strict=True):
            if i not in fixed and a.numel() > 1:
                assert not same_bits(a, b), f"argument {i} is the same in every trial"


@each_problem
def test_inputs_are_finite_and_never_constant(entry: Entry) -> None:
    known = answers.of(entry.number)
    fixed, nonfinite = getattr(known, "FIXED", {}), getattr(known, "NONFINITE", {})
    for rank in range(2):
        for i, argument in enumerate(draw(entry, "tiny", rank, world_size=2)):
            for tensor in tensors(argument):
                if tensor.is_floating_point() and i not in fixed and tensor.numel() > 1:
                    assert i in nonfinite or bool(tensor.isfinite().all())
                    assert len(tensor.unique()) > 1, f"argument {i} is constant"


@each_problem
def test_process_groups_are_the_same_sets_on_every_rank(entry: Entry) -> None:
    for world_size in WORLD_SIZES:
        if not legal(entry, "tiny", world_size):
            continue
        drawn = [draw(entry, "tiny", rank, world_size) for rank in range(world_size)]
        groups = [[leaf for leaf in leaves(arguments) if isinstance(leaf, Subgroups)] for arguments in drawn]
        assert all(own == groups[0] for own in groups)
        for group in groups[0]:
            assert sorted(rank for ranks in group.sets for rank in ranks) == list(range(world_size))
            assert all(list(ranks) == sorted(ranks) for ranks in group.sets)


@each_problem
def test_tiny_and_odd_run_where_the_problem_can(entry: Entry) -> None:
    sizes = getattr(answers.of(entry.number), "WORLD_SIZES", WORLD_SIZES)
    assert {2, 4, 8} <= set(sizes)
    for case in ("tiny", "odd"):
        assert [w for w in WORLD_SIZES if legal(entry, case, w)] == list(sizes), case
    for case in (entry.default, "pkb", "large"):
        assert all(legal(entry, case, w) for w in (2, 4, 8)), case


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
            assert work.hbm_bytes > 0
            # As published some need no communication.
            assert min(work.link_out_bytes, work.link_in_bytes) > 0 or (entry.repair and case.name == "pkb")
            wider = problem.work(case, world_size, 4)
            assert wider.hbm_bytes >= work.hbm_bytes and wider.link_in_bytes >= work.link_in_bytes


@each_problem
def test_one_rank_has_no_link_traffic(entry: Entry) -> None:
    if not legal(entry, "tiny", 1):
        pytest.skip("cannot run on one rank")
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
