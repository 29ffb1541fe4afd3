"""Who waits for whom."""

import pytest

from harness import waiting
from harness.outcomes import Frame, RankOutcome
from harness.progress import Phase, Words

SOURCE = "import x\n\ndef solution(t):\n    buf.barrier()\n    dist.all_reduce(t)\n    work.wait()\n    LIB.go(t)\n"


def rank(number, line=None, *inner, calls=3):
    words = Words(Phase.calling, calls, calls - 1, 0)
    if line is None:
        return RankOutcome(number, reply={}, words=words)
    stack = (*(Frame(f"/x/{name}.py", 1, name) for name in inner), Frame("/y/candidate.py", line, "solution"))
    return RankOutcome(number, silent=True, words=words, stack=stack)


def only(*ranks):
    (finding,) = waiting.explain(ranks, SOURCE)
    return finding


def test_a_rank_that_returned_early():
    found = only(rank(0, 4, "barrier"), rank(1), rank(2, 4, "barrier"))
    assert found.cause == "rank does not arrive" and found.certain
    assert found.text.startswith("rank 1 returned") and "ranks 0, 2 at line 4: `buf.barrier()`" in found.text
    assert found.evidence == "all ranks are in call 3"


def test_a_line_behind_a_form_feed():
    (found,) = waiting.explain((rank(0, 4, "barrier"), rank(1)), SOURCE.replace("x\n", "x\f\n# \u2028", 1))
    assert "rank 0 at line 4: `buf.barrier()`" in found.text


def test_ranks_that_wait_at_different_places():
    found = only(rank(0, 4, "barrier"), rank(1, 5, "all_reduce", calls=4))
    assert found.cause == "different order"
    assert "rank 0 at line 4" in found.text and "rank 1 at line 5" in found.text
    assert found.evidence == "calls begun: rank 0 3, rank 1 4"


def test_all_at_the_same_place():
    flags = only(rank(0, 7, "call"), rank(1, 7, "call"))
    assert flags.cause == "nobody signals" and "flag" in flags.text and not flags.certain
    transfers = only(rank(0, 6), rank(1, 6))
    assert "sends and receives do not match" in transfers.text
    collective = only(rank(0, 5, "all_reduce", "wrapper"), rank(1, 5, "all_reduce", "wrapper"))
    assert "different sizes, kinds, groups" in collective.text


def test_ranks_that_are_at_work_wait_for_nobody():
    (found,) = waiting.explain([rank(0, 7), rank(1, 7)], SOURCE, working=True)
    assert found.cause == "does not end" and not found.certain
    assert found.text.startswith("all ranks at line 7: `LIB.go(t)`: at work there")


@pytest.mark.parametrize("line", [-(10**9), -1, 8, 10**9])
def test_a_line_that_is_not_in_the_source(line):
    """The candidate can write to the progress words."""
    words = Words(Phase.draining, 1, 0, 0, line)
    found = only(RankOutcome(0, silent=True, words=words), RankOutcome(1, reply={}, words=words))
    assert f"rank 0 at line {line}: ``" in found.text


@pytest.mark.parametrize("source", ["", SOURCE])
def test_line_0_of_a_stack(source):
    """So it may stand there of code that was compiled as the candidate's."""
    (found,) = waiting.explain([rank(0, 0), rank(1, 0)], source)
    assert "line 0: ``" in found.text


def test_nothing_to_say_if_nobody_waits():
    assert waiting.explain([rank(0), rank(1)], SOURCE) == ()
