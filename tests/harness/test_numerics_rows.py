"""A row may be a thousand times smaller than another and must still be right, where bounds over the tensor hide it.

Honest answers must pass whatever the rows' scales, their outliers and the ranks' shares: many rows, many orders.
"""

from collections.abc import Callable

import pytest
import torch

from harness.numerics import compare
from harness.types import Mismatch
from tests.orders import in_order, ring, tree

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
LARGE, SMALL = 3, 5
"""A row a thousand times larger than the others, and one of the others."""

each_dtype = pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
each_size = pytest.mark.parametrize("world_size", [2, 4])


pytestmark = pytest.mark.usefixtures("one_thread")


def judge(output: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, world_size: int) -> Mismatch | None:
    output = output.to(reference.dtype)
    found = compare(output, reference, oracle, exact=False, check="oracle", trial=0, world_size=world_size)
    return found[0] if found else None


class Sum:
    """What an all-reduce adds, with rows, columns and ranks of given scales."""

    def __init__(self, dtype: torch.dtype, world_size: int, rows, columns=1.0, ranks=None, shape=(64, 1024), seed=0):
        generator = torch.Generator().manual_seed(seed)
        draw = lambda rank: torch.randn(shape, generator=generator) * rows * columns * (ranks[rank] if ranks else 1)  # noqa: E731
        self.parts = [draw(rank).to(dtype) for rank in range(world_size)]
        self.reference = ring(self.parts)
        self.oracle = in_order(part.double() for part in self.parts)

    def judge(self, output: torch.Tensor) -> Mismatch | None:
        return judge(output, self.reference, self.oracle, len(self.parts))


def one_large_row(dtype: torch.dtype, world_size: int) -> Sum:
    scales = torch.full((32, 1), 1e-2)
    scales[LARGE] = 10.0
    # Long enough to tell int8 from the roundings of bf16 in one row alone.
    return Sum(dtype, world_size, scales, shape=(32, 4096))


def int8(part: torch.Tensor) -> torch.Tensor:
    scale = part.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(part.float() / scale) * scale


WRONG_ROWS: dict[str, Callable[[Sum], torch.Tensor]] = {
    "zeros": lambda s: torch.zeros_like(s.oracle),
    "int8 on the wire": lambda s: in_order(int8(part) for part in s.parts),
    "int8 from peers only": lambda s: in_order([s.parts[0].float(), *map(int8, s.parts[1:])]),
    "a rank dropped": lambda s: in_order(part.float() for part in s.parts[1:]),
    "another row": lambda s: s.reference.roll(1, 0),
}


@each_dtype
@each_size
@pytest.mark.parametrize("wrong", WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_one_wrong_row_fails_though_it_is_a_thousand_times_smaller(dtype, world_size, wrong):
    case = one_large_row(dtype, world_size)
    output = case.reference.clone()
    output[SMALL] = wrong(case)[SMALL].to(dtype)
    mismatch = case.judge(output)
    assert mismatch is not None
    assert mismatch.rms_error > mismatch.rms_allowed and {d.index[0] for d in mismatch.first} == {SMALL}


@each_dtype
def test_a_tile_of_a_small_row_fails(dtype):
    case = one_large_row(dtype, 4)
    output = case.reference.clone()
    output[SMALL, 512:768] = 0
    mismatch = case.judge(output)
    assert mismatch is not None and {d.index for d in mismatch.first} <= {(SMALL, c) for c in range(512, 768)}


def test_fp16_in_the_small_rows_of_a_float32_run_fails():
    case = one_large_row(FP32, 4)
    output = in_order(part.half().float() for part in case.parts)
    output[LARGE] = case.reference[LARGE]
    assert case.judge(output) is not None


def test_the_figures_are_those_of_the_worst_row():
    case = one_large_row(BF16, 4)
    output = case.reference.clone()
    output[SMALL] = 0
    output[SMALL + 1, ::2] = 0
    mismatch = case.judge(output)
    row = case.oracle[SMALL].abs()
    assert mismatch is not None and mismatch.total == 32 * 4096
    assert 5800 < mismatch.wrong < 6144, "nearly all of one row and half of another"
    assert mismatch.max_error == pytest.approx(float(row.max())) and mismatch.max_error > mismatch.max_allowed > 0
    assert mismatch.rms_error == pytest.approx(float(row.square().mean().sqrt()))
    assert 20 * mismatch.rms_allowed < mismatch.rms_error
    assert mismatch.chunks_wrong == (pytest.approx(mismatch.wrong / 8 / 4096), 0, 0, 0)
    assert all((d.index[0], d.got) == (SMALL, 0) for d in mismatch.first)


def test_precision_lost_in_a_row_shows_its_worst_elements():
    case = one_large_row(BF16, 2)
    output = case.reference.clone()
    output[SMALL] = in_order(map(int8, case.parts))[SMALL].to(BF16)
    mismatch = case.judge(output)
    assert mismatch is not None
    assert mismatch.wrong == 0 and mismatch.max_error <= mismatch.max_allowed
    worst = mismatch.first[0]
    assert worst.index[0] == SMALL and abs(worst.got - worst.expected) == pytest.approx(mismatch.max_error)


def test_a_row_takes_in_axes_until_it_is_long_enough():
    """Heads of 64: a token's 8 heads are one row."""
    scales = torch.ones(2, 16, 1, 1)
    scales[0, 7] = 1e-3
    case = Sum(BF16, 2, scales, shape=(2, 16, 8, 64))
    output = case.reference.clone()
    output[0, 7] = 0
    mismatch = case.judge(output)
    assert mismatch is not None and mismatch.first[0].index == (0, 7, 0, 0)


# -- honest answers ---------------------------------------------------------------------------------------------------


def outlier_columns(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.where(torch.rand(1024, generator=generator) < 0.01, 50.0, 1.0)


def decades(seed: int) -> torch.Tensor:
    return 10 ** (torch.rand(64, 1, generator=torch.Generator().manual_seed(seed)) * 6 - 4)


@each_dtype
@pytest.mark.parametrize("world_size", [2, 8])
@pytest.mark.parametrize("kind", ["rows", "outlier columns", "ranks"])
def test_honest_sums_pass_whatever_the_scales(dtype, world_size, kind):
    for seed in range(2):
        rows = 1.0 if kind == "ranks" else decades(seed)
        columns = outlier_columns(seed) if kind == "outlier columns" else 1.0
        ranks = [2.0**-rank for rank in range(world_size)] if kind == "ranks" else None
        case = Sum(dtype, world_size, rows, columns, ranks, seed=seed)
        exact = in_order(part.float() for part in case.parts).to(dtype)
        answers = {
            "ring": case.reference,
            "ring the other way": ring(case.parts[::-1]),
            "in the order of ranks": in_order(case.parts),
            "tree": tree(case.parts),
            "float32": exact,
            "rounded once": case.oracle,
        }
        for name, answer in answers.items():
            assert case.judge(answer) is None, name
            assert judge(answer, exact, case.oracle, world_size) is None, f"{name}, reference in float32"


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_a_rank_that_outweighs_the_others_may_come_first(dtype):
    """All roundings of the chain are then at full scale."""
    for ranks in ([30.0] + [1.0] * 7, [2.0**-rank for rank in range(8)]):
        case = Sum(dtype, 8, 1.0, ranks=ranks)
        wide = in_order(part.float() for part in case.parts).to(dtype)
        assert case.judge(in_order(case.parts)) is None
        assert judge(in_order(case.parts), wide, case.oracle, 8) is None


@pytest.mark.parametrize("dtype", [FP32, FP64], ids=str)
def test_products_with_rows_of_all_scales_pass_in_every_order(dtype):
    generator = torch.Generator().manual_seed(0)
    a = (torch.randn(64, 2048, generator=generator) * decades(0)).to(dtype)
    b = torch.randn(2048, 256, generator=generator).to(dtype)
    reference, oracle = a @ b, a.double() @ b.double()
    one_long_loop = torch.zeros_like(reference)
    for k in range(2048):
        one_long_loop.addcmul_(a[:, k : k + 1], b[k : k + 1])
    answers = {
        "blocks of 32": in_order(a[:, k : k + 32] @ b[k : k + 32] for k in range(0, 2048, 32)),
        "split in 8": tree([a[:, k::8] @ b[k::8] for k in range(8)]),
        "one long loop": one_long_loop,
    }
    for name, answer in answers.items():
        assert judge(answer, reference, oracle, 2) is None, name
        coarse = answer.clone()
        coarse[7] = coarse[7].to(FP16 if dtype == FP32 else FP32).to(dtype)
        assert judge(coarse, reference, oracle, 2) is not None, name


@pytest.mark.parametrize("dtype", [BF16, FP32, FP64], ids=str)
def test_a_scalar_passes_however_close_the_reference_happens_to_be(dtype):
    """A loss: there is no second element to tell the reference's luck from its accuracy."""
    for seed in range(50):
        terms = torch.rand(4096, generator=torch.Generator().manual_seed(seed), dtype=FP64)
        oracle, wide = terms.sum(), terms.to(FP64 if dtype == FP64 else FP32)
        one_loop = wide.view(64, 64).cumsum(0, dtype=wide.dtype)[-1].cumsum(0)[-1]
        assert judge(one_loop, oracle.to(dtype), oracle, 2) is None
        assert judge(one_loop * 1.05, oracle.to(dtype), oracle, 2) is not None


def test_what_underflows_may_be_flushed_to_zero():
    oracle = torch.ones(4, 512, dtype=FP64)
    oracle[2] = 1e-39
    reference = oracle.float()
    assert judge(torch.where(oracle < 1e-38, 0.0, reference), reference, oracle, 2) is None
    assert judge(torch.where(oracle < 1e-38, 1e-30, reference), reference, oracle, 2) is not None


def test_a_row_of_zeros_must_be_zero():
    case = Sum(FP32, 2, torch.ones(64, 1))
    case.oracle[9] = case.reference[9] = 0
    assert case.judge(case.reference) is None
    output = case.reference.clone()
    output[9] = 1e-9
    assert case.judge(output) is not None
