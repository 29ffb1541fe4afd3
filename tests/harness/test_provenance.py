"""What wrong values are: each statement on an output that is so, and none on one that is not."""

import pytest
import torch

from harness import part, provenance
from harness.numerics import judge
from harness.sources import Sources

W, RANK = 4, 1
SHAPE = (16, 24)


def draw(number: int, *shape: int) -> torch.Tensor:
    """In float64, of values that float32 has too."""
    return torch.randn(shape or SHAPE, generator=torch.Generator().manual_seed(number)).double()


PARTS = [draw(k) for k in range(W)]
RIGHT = torch.stack(PARTS).sum(0)


def explained(out: torch.Tensor, right: torch.Tensor = RIGHT, *, exact: bool = False, **sources):
    """(cause, region, text, certain) of each fact on rank 1's output of an all-reduce."""
    given = {"inputs": [[("argument `x`", own)] for own in PARTS], "rights": [right] * W} | sources
    known = Sources(RANK, W, **given)
    known.weigh(right)
    judged = judge(out, right.to(out.dtype), right, exact, "oracle", W)
    assert judged.wrong
    found = provenance.explain(judged, out, known)
    return [
        (fact.cause, region.text, fact.text.replace("{peer}", str(fact.peer)), fact.certain) for region, fact in found
    ]


def only(out, *args, **sources):
    found = explained(out, *args, **sources)
    assert len(found) == 1, found
    return found[0]


SUM = {"parts": PARTS, "without": [RIGHT - part for part in PARTS]}
single = RIGHT.float()


@pytest.mark.parametrize(
    ("out", "cause", "words"),
    [
        ((RIGHT - PARTS[2]).float(), "rank left out", "rank 2's part is missing"),
        ((RIGHT + PARTS[3]).float(), "counted twice", "rank 3's part is counted twice"),
        ((PARTS[1] * W).float(), "own data only", "times W"),
        (PARTS[1].float(), "own data only", "own part alone"),
        (PARTS[0].float(), "one rank only", "rank 0's part alone"),
        ((RIGHT / W).float(), "scaled", "a mean where the sum is right"),
        ((RIGHT * 3.7).float(), "scaled", "3.7 times"),
        ((PARTS[0] + 0.5 * PARTS[1] + PARTS[2]).float(), "ranks left out", "rank 1's part counts 0.5 times"),
        (torch.zeros(SHAPE), "zero", "zero"),
        (torch.full(SHAPE, 7.0), "constant", "all 7"),
        (torch.full(SHAPE, torch.nan), "NaN", "NaN"),
        (torch.full(SHAPE, torch.inf), "infinity", "overflow"),
        (single + 1, "offset", "+1 beside"),
        (single + draw(9, SHAPE[1]).float(), "offset", "the same vector"),
        (single.flip(0), "reversed", "axis 0"),
        (single.roll(SHAPE[1] // 2, 1), "halves swapped", "axis 1"),
        (single.roll(1, 0), "shifted", "+1 along axis 0"),
        (single[torch.randperm(16, generator=torch.Generator().manual_seed(1))], "rows in another order", "has row"),
        (single * torch.linspace(0.5, 2, 16)[:, None], "rows scaled", "0.5 to 2"),
        (single.bfloat16().float(), "low precision", "rounded to bfloat16"),
        (single.half().float(), "low precision", "rounded to float16"),
    ],
)  # fmt: skip
def test_wrong_everywhere(out, cause, words):
    found = only(out, **SUM)
    assert found[0] == cause and found[1] == "everything" and words in found[2] and found[3]


def test_memory_that_was_never_written():
    out = single.clone()
    out[12:].view(torch.uint8).fill_(0xFE)
    assert only(out, **SUM)[:3] == ("never written", "chunk 3 of 4 (rows 12..15)", "never written")


def test_rows_that_add_up_differently():
    out = RIGHT.clone()
    out[3:7] = W * PARTS[0][3:7]
    out[7:] -= PARTS[2][7:]
    found = explained(out.float(), **SUM)
    assert [region for _, region, _, _ in found] == ["rows 3..6", "rows 7..15"]
    assert "rank 0's part 4 times" in found[0][2] and "rank 2's part is missing" in found[1][2]


def test_chunks_of_a_gather_that_stand_in_wrong_places():
    right = torch.stack(PARTS)
    out = right[[0, 2, 1, 3]]
    found = explained(out.float(), right, exact=True)
    assert [(cause, region) for cause, region, _, _ in found] == [
        ("peer's data", "chunk 1 of 4 (index 1 of axis 0)"),
        ("own data", "chunk 2 of 4 (index 2 of axis 0)"),
    ]


def test_what_is_right_on_another_rank():
    rights = [draw(20 + k) for k in range(W)]
    assert only(rights[2].float(), rights[RANK], rights=rights)[:3] == (
        "another rank's", "everything", "what belongs to rank 2, its block of the result",
    )  # fmt: skip


def test_other_calls():
    former, following = draw(30), draw(31)
    others = [("the call 1 before", former), ("the call after", following)]
    assert only(former.float(), others=others, **SUM)[0] == "stale"
    assert only(following.float(), others=others, **SUM)[0] == "overtaken"
    torn = torch.where(torch.rand(SHAPE, generator=torch.Generator().manual_seed(2)) < 0.5, former, following)
    cause, _, text, _ = only(torn.float(), others=others, **SUM)
    assert cause == "torn" and "call 1 before" in text and "call after" in text


def test_a_square_tile_that_is_transposed():
    right = draw(40, 12, 12)
    assert only(right.T.contiguous().float(), right)[0] == "transposed"


def test_a_copy_is_found_where_it_came_from():
    right = draw(50, 6, 24)
    out = right.clone()
    out[2:5] = PARTS[3][7:10]
    cause, region, text, _ = only(out.float(), right, exact=True)
    assert (cause, region) == ("peer's data", "rows 2..4") and "rank 3's argument `x`" in text


def test_a_factor_is_named_by_the_size_it_is():
    right = torch.tensor(2.5, dtype=torch.float64)
    cause, _, text, _ = only((right * 384).float(), right, sizes={384: "the size of axis 0 of argument `x`"})
    assert cause == "scaled" and "384, the size of axis 0" in text


def test_blocks_in_another_order():
    out = torch.cat([single[9:], single[5:9], single[:5]])
    cause, _, text, _ = only(out, **SUM)
    assert cause == "blocks in another order" and "rows 0..6 has rows 9..15" in text


def test_the_right_source_at_a_wrong_offset():
    right = torch.cat([part[2:5] for part in PARTS])
    out = torch.cat([part[2 + k : 5 + k] for k, part in enumerate(PARTS)])
    found = explained(out.float(), right, exact=True)
    assert len(found) == 3 and all(cause == "wrong offset" and "argument `x`" in text for cause, _, text, _ in found)


@pytest.mark.parametrize("out", [(RIGHT * 3).float(), (RIGHT - PARTS[2]).float(), single.flip(1)])
def test_of_a_large_output_some_rows_stand_for_all(monkeypatch, out):
    whole = only(out, **SUM)
    monkeypatch.setattr(part, "_MOST_ELEMENTS", RIGHT.numel() // 4)
    assert only(out, **SUM) == whole


def test_outputs_that_are_swapped():
    sibling = draw(80)
    assert only(sibling.float(), siblings=[(3, sibling)], **SUM)[:3] == (
        "outputs swapped", "everything", "what is right for tensor 3 of the output, counted from 0",
    )  # fmt: skip


def test_one_number_is_always_some_multiple():
    right = torch.tensor(2.5, dtype=torch.float64)
    assert only((right * 1.42).float(), right)[0::3] == ("scaled", False)


def test_what_is_like_nothing_is_unknown():
    assert only(draw(60).float(), **SUM)[0::3] == ("unknown", False)
    cause, _, text, certain = only((RIGHT + 0.5 * draw(61)).float(), **SUM)
    assert cause == "unknown" and "partly right" in text and not certain


def test_what_is_hardly_wrong_is_no_missing_term():
    allowed = judge(single + 1, single, RIGHT, False, "oracle", W).bound.max_error
    every_other = torch.arange(RIGHT.numel()).reshape(SHAPE) % 2
    cause, _, text, certain = only((RIGHT + allowed * every_other * draw(71).abs().clamp(1.2, 1.8)).float(), **SUM)
    assert cause == "low precision" and not certain and "hardly wrong" in text


def test_a_slightly_wrong_formula_is_not_called_rounding():
    out = RIGHT + 0.01 * RIGHT.abs()
    assert only(out.float(), **SUM)[0] == "unknown"
    noise = RIGHT * (1 + 0.004 * draw(70).clamp(-1, 1))
    cause, _, text, certain = only(noise.float(), **SUM)
    assert cause == "low precision" and not certain and "constant slightly wrong" in text
