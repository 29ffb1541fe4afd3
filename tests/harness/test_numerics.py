"""What counts as right: honest arithmetic of every order passes, cheaper arithmetic and wrong answers do not.

Ranks are simulated: `ring` adds as NCCL and gloo do, rounding to the run's dtype at each hop.
"""

import copy
import functools
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from harness import numerics
from harness.numerics import compare
from harness.types import Mismatch
from problems import catalogue
from problems.spec import Case, RankContext
from tests.orders import Parts, in_order, ring, tree

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
WORLD_SIZES = (2, 4, 8)


pytestmark = pytest.mark.usefixtures("one_thread")


def int8_rows(values: torch.Tensor) -> torch.Tensor:
    """To int8 and back, one scale a row."""
    scale = values.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(values.float() / scale) * scale


def int8_blocks(values: torch.Tensor, block: int = 32) -> torch.Tensor:
    return int8_rows(values.reshape(-1, block)).reshape(values.shape)


def fp8(values: torch.Tensor) -> torch.Tensor:
    scale = values.float().abs().amax() / 448
    return (values.float() / scale).to(torch.float8_e4m3fn).float() * scale


class Run:
    """One trial: per rank what is added, the reference's answer and the oracle's."""

    def __init__(self, parts: Parts, exact: Parts, operands: tuple[Parts, Parts] | None = None) -> None:
        self.parts, self.exact, self.operands = parts, exact, operands
        self.dtype = parts[0].dtype
        self.reference = ring(parts)
        self.oracle = torch.stack(exact).sum(0)

    def copy(self) -> "Run":
        run = copy.copy(self)
        run.reference, run.oracle = self.reference.clone(), self.oracle.clone()
        return run

    def judge(self, output: torch.Tensor, check: str = "oracle", exact: bool = False) -> Mismatch | None:
        found = compare(
            output.to(self.dtype),
            self.reference,
            self.oracle,
            exact=exact,
            check=check,
            trial=0,
            world_size=len(self.parts),
        )
        return found[0] if found else None


def fresh(make: Callable[..., Run]) -> Callable[..., Run]:
    """Draws each run once; every caller gets a copy of its own."""
    drawn = functools.cache(make)
    return functools.wraps(make)(lambda *args, **kwargs: drawn(*args, **kwargs).copy())


@fresh
def all_reduce(dtype: torch.dtype, world_size: int, seed: int = 0, scale: float = 1.0, shape=(192, 192)) -> Run:
    contexts = [
        RankContext(seed=seed, rank=r, world_size=world_size, dtype=dtype, device="cpu") for r in range(world_size)
    ]
    parts = [(c.randn(*shape, dtype=FP32) * scale).to(dtype) for c in contexts]
    return Run(parts, [p.double() for p in parts])


@fresh
def gemm_all_reduce(dtype: torch.dtype, world_size: int, seed: int = 0, scale: float = 1.0, **sizes: int) -> Run:
    """Problem 13: products rounded to the run's dtype, then summed."""
    problem = catalogue.load(13)
    case = Case("test", {"m": 128, "n": 128, "k": 256} | sizes)
    drawn = [
        problem.inputs(case, RankContext(seed=seed, rank=r, world_size=world_size, dtype=dtype, device="cpu"))
        for r in range(world_size)
    ]
    a, b = [d[0] * scale for d in drawn], [d[1] for d in drawn]
    parts = [(x.float() @ y.float()).to(dtype) for x, y in zip(a, b, strict=True)]
    return Run(parts, [x.double() @ y.double() for x, y in zip(a, b, strict=True)], (a, b))


each_run = pytest.mark.parametrize("world_size", WORLD_SIZES)
each_workload = pytest.mark.parametrize("workload", [all_reduce, gemm_all_reduce])
each_dtype = pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)

HONEST: dict[str, Callable[[Run], torch.Tensor]] = {
    "the reference itself": lambda r: r.reference,
    "accumulated in float32": lambda r: in_order(p.float() for p in r.parts),
    "accumulated in float64": lambda r: in_order(p.double() for p in r.parts),
    "exact, rounded once": lambda r: r.oracle,
    "ring the other way": lambda r: ring(r.parts[::-1]),
    "in the order of ranks": lambda r: in_order(r.parts),
    "in reversed order": lambda r: in_order(r.parts[::-1]),
    "by a tree": lambda r: tree(r.parts),
}


@each_workload
@each_dtype
@pytest.mark.parametrize("answer", HONEST.values(), ids=HONEST)
def test_honest_arithmetic_passes(dtype, workload, answer):
    for world_size in WORLD_SIZES:
        run = workload(dtype, world_size)
        assert run.judge(answer(run)) is None, world_size


@each_workload
@pytest.mark.parametrize("scale", [1e-3, 1e2])
def test_honest_arithmetic_passes_at_other_scales(workload, scale):
    for world_size in WORLD_SIZES:
        run = workload(BF16, world_size, scale=scale)
        for name, answer in HONEST.items():
            assert run.judge(answer(run)) is None, (name, world_size)


def test_a_reference_that_is_exact_leaves_room_for_a_chain_of_roundings():
    """Where the reference accumulates in float32, a bf16 ring is still honest work."""
    for world_size in WORLD_SIZES:
        run = all_reduce(BF16, world_size)
        answer, run.reference = run.reference, in_order(p.float() for p in run.parts).to(BF16)
        assert run.judge(answer) is None, world_size


@each_run
def test_one_long_chain_of_float32_additions_passes(world_size):
    """A fused kernel may add the inner axis of all ranks in one loop: float32 throughout, more error than blocks."""
    run = gemm_all_reduce(FP32, world_size, k=512)
    a, b = (torch.cat(x, dim) for x, dim in zip(run.operands, (1, 0), strict=True))
    total = torch.zeros_like(run.reference)
    for k in range(a.shape[1]):
        total.addcmul_(a[:, k : k + 1], b[k : k + 1])
    assert run.judge(total) is None


@pytest.mark.parametrize("workload", [all_reduce, gemm_all_reduce])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_small_outputs_pass_too(workload, dtype):
    """The RMS of few elements scatters: 14 x 40, as in the case `tiny`, many draws."""
    sizes = {"shape": (14, 40)} if workload is all_reduce else {"m": 14, "n": 40, "k": 24}
    for seed in range(12):
        for world_size in WORLD_SIZES:
            run = workload(dtype, world_size, seed=seed, **sizes)
            for name, answer in HONEST.items():
                assert run.judge(answer(run)) is None, (name, world_size, seed)


CHEATS_AT_16_BITS: dict[str, Callable[[Run], torch.Tensor]] = {
    "int8 on the wire, a scale per row": lambda r: in_order(int8_rows(p) for p in r.parts),
    "int8 from peers only": lambda r: in_order([r.parts[0].float(), *map(int8_rows, r.parts[1:])]),
    "fp8 from peers only": lambda r: in_order([r.parts[0].float(), *map(fp8, r.parts[1:])]),
    "a rank dropped": lambda r: in_order(p.float() for p in r.parts[:-1]),
    "a rank counted twice": lambda r: in_order(p.float() for p in [*r.parts, r.parts[0]]),
    "all zero": lambda r: torch.zeros_like(r.reference),
    "only its own part": lambda r: r.parts[0],
    "the mean for the sum": lambda r: r.reference / len(r.parts),
    "the reference of another trial": lambda r: r.reference.flip(0),
}


@each_workload
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])
@pytest.mark.parametrize("answer", CHEATS_AT_16_BITS.values(), ids=CHEATS_AT_16_BITS)
def test_cheaper_or_missing_arithmetic_fails(workload, scale, answer):
    for world_size in WORLD_SIZES:
        run = workload(BF16, world_size, scale=scale)
        assert run.judge(answer(run)) is not None, world_size


@pytest.mark.parametrize(
    ("workload", "world_size"),
    [
        (all_reduce, 2),
        (all_reduce, 4),
        (all_reduce, 8),
        (gemm_all_reduce, 2),
        (gemm_all_reduce, 4),
        (gemm_all_reduce, 8),
    ],
)
def test_int8_in_small_blocks_fails(workload, world_size):
    """The finest quantisation that still saves traffic: one scale per 32 values, peers' parts only."""
    run = workload(BF16, world_size)
    assert run.judge(in_order([run.parts[0].float(), *map(int8_blocks, run.parts[1:])])) is not None


CHEATS_AT_FLOAT32: dict[str, Callable[[Run], torch.Tensor]] = {
    "bf16 on the wire": lambda r: in_order(p.to(BF16).float() for p in r.parts),
    "fp16 on the wire": lambda r: in_order(p.to(FP16).float() for p in r.parts),
    "fp16 from peers only": lambda r: in_order([r.parts[0], *(p.to(FP16).float() for p in r.parts[1:])]),
    "tf32 on the wire": lambda r: in_order((p.view(torch.int32) & ~0x1FFF).view(FP32) for p in r.parts),
    "result rounded to bf16": lambda r: r.reference.to(BF16),
    "a rank dropped": lambda r: in_order(r.parts[:-1]),
    "all zero": lambda r: torch.zeros_like(r.reference),
}


@each_workload
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])
@pytest.mark.parametrize("answer", CHEATS_AT_FLOAT32.values(), ids=CHEATS_AT_FLOAT32)
def test_sixteen_bits_in_a_float32_run_fail(workload, scale, answer):
    for world_size in WORLD_SIZES:
        run = workload(FP32, world_size, scale=scale)
        mismatch = run.judge(answer(run))
        assert mismatch is not None, world_size
        assert mismatch.rms_error > 8 * mismatch.rms_allowed, "far from the bound: float32 leaves room"


def test_float16_range_in_a_float32_run_fails():
    run = all_reduce(FP32, 2, scale=1e5)
    mismatch = run.judge(in_order(p.to(FP16).float() for p in run.parts))
    assert mismatch is not None and mismatch.nonfinite > 0


@each_dtype
def test_one_wrong_element_fails_and_is_named(dtype):
    run = all_reduce(dtype, 4)
    output = run.reference.clone()
    output[160, 17] += 1.0
    mismatch = run.judge(output)
    assert mismatch is not None
    assert (mismatch.wrong, mismatch.total, mismatch.nonfinite) == (1, 36864, 0)
    (difference,) = mismatch.first
    assert difference.index == (160, 17)
    assert difference.got == output[160, 17].item()
    assert difference.expected == pytest.approx(run.oracle[160, 17].item())
    assert mismatch.max_error == pytest.approx(1.0, rel=0.1) and mismatch.max_error > mismatch.max_allowed > 0
    assert mismatch.chunks_wrong == (0, 0, 0, pytest.approx(1 / 48 / 192))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("check", ["oracle", "pkb"])
@pytest.mark.parametrize("exact", [False, True])
def test_one_element_that_is_not_finite_fails(value, check, exact):
    run = all_reduce(BF16, 2)
    output = run.reference.clone()
    output[3, 4] = value
    mismatch = run.judge(output, check, exact)
    assert mismatch is not None and (mismatch.wrong, mismatch.nonfinite) == (1, 1)
    assert mismatch.first[0].index == (3, 4)
    assert math.isfinite(mismatch.max_error) and math.isfinite(mismatch.rms_error)


@pytest.mark.parametrize("check", ["oracle", "pkb"])
def test_an_answer_of_nothing_but_nan_fails(check):
    run = all_reduce(BF16, 2)
    mismatch = run.judge(torch.full_like(run.reference, math.nan), check)
    assert mismatch is not None and mismatch.wrong == mismatch.nonfinite == mismatch.total


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_a_missing_tail_fails_in_its_chunk(dtype):
    run = all_reduce(dtype, 4)
    output = run.reference.clone()
    output.view(-1)[-100:] = 0
    mismatch = run.judge(output)
    assert mismatch is not None and 80 <= mismatch.wrong <= 100
    assert [fraction > 0 for fraction in mismatch.chunks_wrong] == [False, False, False, True]
    assert len(mismatch.first) == 6 and mismatch.first[0].index[0] == 191


def test_precision_lost_everywhere_shows_the_worst_elements():
    run = all_reduce(BF16, 2)
    mismatch = run.judge(in_order(int8_rows(p) for p in run.parts))
    assert mismatch is not None
    assert mismatch.rms_error > mismatch.rms_allowed
    assert mismatch.wrong == 0 and mismatch.max_error <= mismatch.max_allowed
    worst = mismatch.first[0]
    assert abs(worst.got - worst.expected) == pytest.approx(mismatch.max_error)


def test_an_overflowing_reference_does_not_open_the_bound():
    """65504 + 65504 is infinite in float16: that element says nothing about the others."""
    parts = [torch.ones(64, 64, dtype=FP16) for _ in range(2)]
    for part in parts:
        part[0, 0] = 60000
    run = Run(parts, [p.double() for p in parts])
    assert run.reference[0, 0].isinf() and run.oracle[0, 0] == 120000
    assert run.judge(run.reference) is None
    wrong = run.reference.clone()
    wrong[5, 5] = 3.0
    mismatch = run.judge(wrong)
    assert mismatch is not None and mismatch.first[0].index == (5, 5) and mismatch.wrong == 1
    saturated = run.reference.clone()
    saturated[0, 0] = 65504
    assert run.judge(saturated) is not None


def test_an_answer_better_than_an_overflowing_reference_passes():
    """The sum is finite; the reference's order overflows on the way."""
    parts = [torch.full((8, 8), value, dtype=FP16) for value in (60000.0, 60000.0, -60000.0, -59000.0)]
    run = Run(parts, [p.double() for p in parts])
    run.reference = in_order(parts)
    assert run.reference.isinf().all()
    assert run.judge(run.oracle) is None
    assert run.judge(run.reference) is None, "doing as the reference does is right too"
    assert run.judge(run.oracle + 500) is not None


def test_nan_where_the_reference_has_nan_is_right():
    run = all_reduce(BF16, 2)
    run.reference[1, 2] = run.oracle[1, 2] = math.nan
    assert run.judge(run.reference) is None
    assert run.judge(run.reference, exact=True) is None
    other = run.reference.clone()
    other[1, 2] = 0.0
    mismatch = run.judge(other)
    assert mismatch is not None and (mismatch.wrong, mismatch.nonfinite) == (1, 0)


def test_infinite_where_infinite_is_right_passes():
    run = all_reduce(FP32, 2)
    run.reference[1, 2] = run.oracle[1, 2] = math.inf
    assert run.judge(run.reference) is None
    assert run.judge(-run.reference) is not None
    other = run.reference.clone()
    other[1, 2] = -math.inf
    assert run.judge(other) is not None


def test_an_output_that_should_be_zero_must_be():
    zero = torch.zeros(8, 8)
    run = Run([zero, zero], [zero.double()] * 2)
    assert run.judge(zero) is None
    output = zero.clone()
    output[0, 0] = 1e-6
    mismatch = run.judge(output)
    assert mismatch is not None and mismatch.wrong == 1


# -- exact ------------------------------------------------------------------------------------------------------------


def moved(output: torch.Tensor, expected: torch.Tensor, world_size: int = 2) -> list[Mismatch]:
    return compare(output, expected, expected, exact=True, check="oracle", trial=1, world_size=world_size)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_moved_data_must_agree_in_every_bit(dtype):
    expected = torch.linspace(0.5, 100, 64).to(dtype).reshape(8, 8)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
    assert moved(expected.clone(), expected) == []
    assert moved(expected.T.contiguous().T, expected) == []
    output = expected.clone()
    output.view(kind)[6, 1] ^= 1
    (mismatch,) = moved(output, expected)
    assert (mismatch.wrong, mismatch.trial, mismatch.max_allowed) == (1, 1, 0)
    assert mismatch.first[0].index == (6, 1)
    assert mismatch.chunks_wrong == (0, 1 / 32)


def test_moved_zeros_keep_their_sign_and_nan_stays_nan():
    expected = torch.tensor([0.0, -0.0, math.nan, math.inf])
    assert moved(expected.clone(), expected) == []
    (mismatch,) = moved(torch.tensor([-0.0, -0.0, math.nan, math.inf]), expected)
    assert mismatch.wrong == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_integers_are_compared_exactly_in_every_class(dtype):
    expected = (torch.arange(12) % 2).to(dtype)
    for exact in (True, False):
        same = compare(expected.clone(), expected, expected, exact=exact, check="oracle", trial=0, world_size=2)
        assert same == []
        output = expected.clone()
        output[7] = 0
        (found,) = compare(output, expected, expected, exact=exact, check="oracle", trial=0, world_size=2)
        assert (found.wrong, found.first[0].index, found.first[0].expected) == (1, (7,), 1.0)


def test_large_integers_differ_though_their_floats_agree():
    expected = torch.tensor([2**60, 5])
    (mismatch,) = moved(torch.tensor([2**60 + 1, 5]), expected)
    assert mismatch.wrong == 1


def test_empty_outputs_are_right():
    assert moved(torch.empty(0, 4), torch.empty(0, 4)) == []


def test_complex_outputs_are_judged_by_their_parts():
    expected = torch.fft.rfft2(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))
    oracle = torch.fft.rfft2(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).double())
    judge = lambda out: compare(out, expected, oracle, exact=False, check="oracle", trial=0, world_size=2)  # noqa: E731
    assert judge(expected) == [] and judge(oracle.to(torch.complex64)) == []
    output = expected.clone()
    output[3, 4] += 1j
    (mismatch,) = judge(output)
    assert mismatch.wrong == 1 and mismatch.first[0].index == (3, 4, 1)


# -- nested outputs and plain values -----------------------------------------------------------------------------------


def test_each_wrong_tensor_of_a_nested_output_is_named():
    x = torch.arange(4.0)
    expected = (x, [x, {"a": x, "b": x}])
    output = [x, (x + 1, {"a": x, "b": x - 1})]
    found = compare(output, expected, expected, exact=True, check="oracle", trial=0, world_size=2)
    assert [m.output for m in found] == ["out[1][0]", "out[1][1]['b']"]


@pytest.mark.parametrize(
    ("expected", "got", "right"),
    [
        (3, 3, True),
        (3, 4, False),
        (2**40, 2**40 + 1, False),
        (2.5, 2.5, True),
        (2.5, 2.5000001, False),
        (True, False, False),
        (None, None, True),
        (3, 10**400, False),
        ("a", "a", True),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_plain_values_must_be_equal(expected, got, right, exact):
    found = compare((got,), (expected,), (expected,), exact=exact, check="oracle", trial=0, world_size=2)
    assert (not found) is right
    assert all(m.output == "out[0]" and m.shape == () and m.total == 1 for m in found)


# -- PKB's rule --------------------------------------------------------------------------------------------------------


def test_pkb_is_allclose_of_reference_and_output():
    ref = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 10
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wrong_counts = set()
    for size in (0.0, 1e-3, 1e-2, 5e-2, 0.5):
        out = ref + size * noise
        bad = ~((ref - out).abs() <= 1e-2 + 1e-2 * out.abs())
        found = compare(out, ref, ref + 100, exact=False, check="pkb", trial=0, world_size=4)
        assert (found[0].wrong if found else 0) == int(bad.sum())
        assert torch.allclose(ref, out, rtol=1e-2, atol=1e-2) is (not found)
        wrong_counts.add(int(bad.sum()))
        if found:
            first = bad.nonzero()[:6].tolist()
            assert [list(d.index) for d in found[0].first] == first
            assert found[0].first[0].expected == ref[tuple(first[0])].item()
            assert found[0].chunks_wrong == tuple(c.double().mean().item() for c in bad.chunk(4))
    assert len(wrong_counts) >= 4


def test_pkb_allows_relative_to_the_output_not_the_reference():
    pkb = lambda out, ref: compare(  # noqa: E731
        torch.tensor([out]), torch.tensor([ref]), torch.tensor([ref]), exact=False, check="pkb", trial=0, world_size=1
    )
    assert pkb(1015.0, 1005.0) == [] and pkb(1015.0, 1004.0) != []
    assert pkb(1.0, 1.019) == [] and pkb(1.0, 1.021) != []
    assert pkb(math.inf, math.inf) == [] and pkb(math.inf, -math.inf) != [] and pkb(math.inf, 1.0) != []
    assert pkb(math.nan, math.nan) != [] and pkb(math.nan, 1.0) != [] and pkb(1.0, math.nan) != []
    assert pkb(1.0, math.inf) != []


def test_pkb_accepts_what_the_oracle_does_not():
    run = all_reduce(FP32, 2, scale=1e-3)
    coarse = in_order(p.to(BF16).float() for p in run.parts)
    assert run.judge(coarse, "pkb") is None
    assert run.judge(coarse) is not None
    assert run.judge(torch.zeros_like(run.reference), "pkb") is None, "its published weakness: small outputs"


# -- what is not judged, and 8-bit floats ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn], ids=str)
def test_elements_that_hang_on_a_rounding_are_not_judged(dtype):
    right = torch.arange(1, 65).to(dtype)
    wrong = torch.where(torch.arange(64) < 3, torch.tensor(100.0), right.double()).to(dtype)
    mask = torch.arange(64) < 3
    how = {"exact": False, "check": "oracle", "trial": 0, "world_size": 2}
    assert compare((wrong,), (right,), (right.double(),), **how)
    assert not compare((wrong,), (right,), (right.double(),), unsure=(mask,), **how)
    assert compare((wrong,), (right,), (right.double(),), unsure=(mask & (torch.arange(64) < 2),), **how)
    assert compare({"a": wrong}, {"a": right}, {"a": right.double()}, unsure={"a": None}, **how)


def test_a_step_of_an_8_bit_float_is_an_error():
    right = torch.linspace(-4, 4, 500).to(torch.float8_e4m3fn)
    output = right.clone()
    output.view(torch.uint8)[17] ^= 1
    (mismatch,) = compare(
        output, right, right.double(), exact=False, check="oracle", trial=0, world_size=2, unsure=None
    )  # fmt: skip
    assert mismatch.wrong == 1


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, torch.float64])
def test_what_is_plainly_right_is_never_judged_wrong(dtype: torch.dtype) -> None:
    """Over shapes, scales, rows of unequal size, errors around every bound, and values that are not finite."""
    chance, seen = torch.Generator().manual_seed(7), Counter[tuple[bool, bool]]()

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=chance))

    def normal(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=chance, dtype=torch.float64)

    for case in range(600):
        shape = ((1,), (7,), (33, 300), (5, 3, 70), (300, 256))[case % 5]
        oracle = normal(shape) * 10 ** uniform(-3, 6)
        if case % 3 == 0:
            oracle *= (3 * normal(shape[:1])).exp().reshape(-1, *[1] * (len(shape) - 1))
        expected = (oracle * (1 + normal(shape) * 10 ** uniform(-18, -1))).to(dtype)
        output = (oracle * (1 + normal(shape) * 10 ** uniform(-18, -1))).to(dtype)
        if case % 7 == 0:
            output.reshape(-1)[case % output.numel()] += (math.nan, math.inf, 0.01)[case % 3]
        plainly = numerics._plainly_right(output, expected, oracle, False, "oracle")
        wrong = numerics.judge(output, expected, oracle, False, "oracle", (1, 2, 8)[case % 3]).wrong
        seen[plainly, wrong] += 1
    assert seen[True, True] == 0
    assert min(seen[True, False], seen[False, True]) > 50, "both must occur for this to say anything"


def test_of_exact_results_only_equal_bits_are_plainly_right() -> None:
    values = torch.tensor([1.0, -0.0, math.nan], dtype=BF16)
    assert numerics._plainly_right(values.clone(), values, values.double(), True, "oracle")
    zero = torch.tensor([1.0, 0.0, math.nan], dtype=BF16)
    assert not numerics._plainly_right(zero, values, values.double(), True, "oracle")
