"""What several ranks' facts come to."""

from harness import findings


def fact(text="everything", cause="zero", says="zero", peer=None, chunk=None, axis=0, certain=True, output="out"):
    return {
        "output": output, "text": text, "chunk": chunk, "axis": axis, "cause": cause, "says": says,
        "evidence": "", "certain": certain, "peer": peer,
    }  # fmt: skip


def texts(*ranks):
    return [finding.text for finding in findings.merge(list(ranks))]


def test_the_same_on_several_ranks_is_said_once():
    assert texts([fact()], [fact()], [fact()]) == ["all ranks: everything: zero"]
    assert texts([fact()], [], [fact()]) == ["ranks 0, 2: everything: zero"]
    assert texts([], [fact(output="out[1]")], []) == ["rank 1: out[1], everything: zero"]


def test_peers_that_follow_the_rank():
    ranks = [[fact(says="what belongs to rank {peer}", peer=(r + 1) % 4)] for r in range(4)]
    assert texts(*ranks) == ["every rank r: everything: what belongs to rank ((r + 1) mod W)"]
    own = [[fact(says="rank {peer}'s part is missing", peer=r)] for r in range(4)]
    assert texts(*own) == ["every rank r: everything: rank r's part is missing"]


def test_chunks_that_follow_the_rank():
    ranks = [[fact(f"chunk {r} of 4", chunk=r)] for r in range(4)]
    assert texts(*ranks) == ["every rank r: chunk r of axis 0: zero"]
    others = [[fact(f"chunk {k} of 4", chunk=k) for k in range(4) if k != r] for r in range(4)]
    assert texts(*others) == ["every rank r: every chunk of axis 0 but chunk r: zero"]


def test_chunks_in_memory_order():
    ranks = [[fact(f"chunk {(r + 2) % 4} of 4", chunk=(r + 2) % 4, axis=-1)] for r in range(4)]
    assert texts(*ranks) == ["every rank r: chunk ((r + 2) mod W) in memory order: zero"]


def test_chunks_that_hold_the_next_one():
    chunks = [
        fact(f"chunk {k} of 4", says="what belongs into chunk {peer}", chunk=k, peer=(k + 1) % 4) for k in range(4)
    ]
    (text,) = texts(*[chunks] * 4)
    assert text == "all ranks: every wrong chunk c of axis 0: what belongs into chunk ((c + 1) mod W)"


def test_nobody_elses_influence():
    says = "does not change with rank {peer}'s inputs, as it must"
    ranks = [[fact(says=says, peer=k) for k in range(3) if k != r] for r in range(3)]
    assert texts(*ranks) == ["every rank r: everything: does not change with any other rank's inputs, as it must"]
    assert texts([], [fact(says=says, peer=0), fact(says=says, peer=2)], []) == [
        "rank 1: everything: does not change with rank 0 and rank 2's inputs, as it must"
    ]


def test_certain_findings_come_first_and_long_lists_are_cut():
    unsure = fact(cause="unknown", says="like nothing", certain=False)
    merged = findings.merge([[unsure, fact()], [unsure]])
    assert [finding.certain for finding in merged] == [True, False]
    many = [[fact(f"row {r * r}", says=f"row of its own {r}")] for r in range(16)]
    assert len(findings.merge(many)) <= 6
