"""Evaluations and runs as text."""

from pathlib import Path

from harness.jail import LAYERS
from harness.types import Difference, Measurement, Mismatch, RankReport, Ratio, Stage, Verdict
from harness.wording import one_line, plain
from runs.events import LaneStarted, Spend
from runs.fold import fold
from runs.wording import duration
from service.render import attempts_table, evaluation_block, run_summary, spent
from service.text import columns


def test_a_pass_shows_both_figures_with_their_intervals(evaluation) -> None:
    lines = evaluation_block("a.py", evaluation()).splitlines()
    assert lines[0] == "a.py: PASSED  (1 allreduce, case tiny, 2 ranks, float32, cpp, check oracle)"
    assert lines[1].startswith(
        "    eager   1.50x [1.40, 1.60]  100.0 us (p10 90.0, p90 110.0, rank skew 1.5)  reference 150.0 us"
    )
    assert lines[2].startswith("    device  1.20x [1.10, 1.30]")
    assert lines[-1] == "    took 1.0 s, 0.0 device-seconds; isolation: netns"


def test_a_protocol_without_intervals_shows_none(evaluation) -> None:
    eager = evaluation().measurement.eager.model_copy(update={"speedup": Ratio(value=1.5, low=1.5, high=1.5)})
    text = evaluation_block("a.py", evaluation(measurement=Measurement(protocol="pkb", eager=eager)))
    assert "\n    eager  1.50x  mean 100.0 us (p10 90.0, p90 110.0, rank skew 1.5)  reference mean 150.0 us\n" in text


def test_a_second_attempt_says_what_ended_the_first(evaluation) -> None:
    last = evaluation_block("a.py", evaluation(fault="too busy\nfor times")).splitlines()[-1]
    assert last == "    a second attempt; the first ended by no fault of the candidate's: too busy for times"


def test_isolation_is_named_layer_by_layer_unless_it_is_whole(evaluation) -> None:
    known = evaluation()
    for on, text in [(LAYERS, "all layers"), ((), "none"), (LAYERS[:2], ", ".join(LAYERS[:2]))]:
        where = known.environment.model_copy(update={"isolation": on})
        assert evaluation_block("a.py", known.model_copy(update={"environment": where})).endswith(f"isolation: {text}")


def test_a_slowed_reference_and_collectives_are_said(evaluation) -> None:
    known = evaluation()
    eager = known.measurement.eager.model_copy(update={"reference_slowed": 1.2})
    measured = known.measurement.model_copy(update={"eager": eager})
    text = evaluation_block("a.py", known.model_copy(update={"measurement": measured, "uses_nccl": True}))
    assert "1.20x slower beside the candidate" in text and "collectives" in text


def test_what_moved_the_data_is_said_of_a_pass(evaluation) -> None:
    text = evaluation_block("a.py", evaluation().model_copy(update={"mechanisms": ("copy engine", "TMA")}))
    assert "\n    moved by: copy engine, TMA\n" in text
    assert "moved by" not in evaluation_block("a.py", evaluation())


def test_a_pass_without_timing_or_device_figure_says_so(evaluation) -> None:
    assert "correct; not timed" in evaluation_block("a.py", evaluation(measurement=None))
    measured = evaluation().measurement
    eager = Measurement(protocol="ringsmith", eager=measured.eager, device_note="no launches on cpu", sol_us=50.0)
    text = evaluation_block("a.py", evaluation(measurement=eager))
    assert "no device figure: no launches on cpu" in text
    assert "50% of it reached" in text and "measured on this machine" not in text
    reachable = eager.model_copy(update={"achievable_us": 80.0, "achievable_bound_by": "link in"})
    text = evaluation_block("a.py", evaluation(measurement=reachable))
    assert "    at rates measured on this machine 80.00 us, bound by link in: 80% reached" in text


def test_a_failure_names_the_ranks_that_share_a_reason(evaluation) -> None:
    wrong = Mismatch(
        trial=0,
        output="out[1]",
        shape=(4, 4),
        wrong=3,
        total=16,
        nonfinite=0,
        max_error=2.0,
        max_allowed=0.1,
        rms_error=1.0,
        rms_allowed=0.1,
        first=(Difference(index=(1, 2), got=5.0, expected=3.0),),
    )
    ranks = (
        *(
            RankReport(rank=n, ok=False, stage=Stage.correctness, message="boom", line=7, exit="SIGSEGV")
            for n in (0, 2)
        ),
        RankReport(rank=1, ok=False, stage=Stage.correctness, mismatches=(wrong,)),
        RankReport(rank=3, ok=True, stage=Stage.correctness),
    )
    text = evaluation_block(
        "a.py", evaluation(verdict=Verdict.wrong_values, ranks=ranks, log="noise\nerror: \x1b[31mx")
    )
    assert "a.py: WRONG_VALUES" in text
    assert "    at correctness: 3 of 16 elements wrong" in text
    assert "    rank 0,2: boom (line 7) [SIGSEGV]" in text
    assert "out[1]: 3 of 16 wrong (max error 2, first at [1, 2]: 5 for 3)" in text
    assert "    | error: �[31mx" in text


def test_what_was_read_from_a_cache_is_said() -> None:
    spend = Spend(steps=2, tokens=2000, input_tokens=1800, cached_tokens=1200)
    assert spent(spend).startswith("2 steps, 2000 tokens (67% of the input cached), 0.00 USD")


def test_the_summary_of_a_run(events, tmp_path: Path) -> None:
    run = fold(events)
    text = run_summary(run, tmp_path)
    assert "finished, submitted; target met" in text
    assert "spent: 3 steps, 330 tokens, 0.30 USD, 70 s, 12 device-seconds" in text
    assert f"record: {tmp_path}" in text
    assert run.best is not None and f"best: {tmp_path}/candidates/{run.best.candidate}.py (eager 1.50x" in text
    rows = attempts_table(run.attempts, run.best).splitlines()
    assert [row[0] for row in rows] == [" ", " ", "*"]
    unpriced = spent(run.spend.model_copy(update={"usd_known": False}))
    assert "at least 0.30 USD" in unpriced
    cut_short = fold(events[:3])
    assert "interrupted, no end recorded; target not met\nno official evaluation" in run_summary(cut_short, tmp_path)


def test_a_run_in_lanes_says_that_it_is_one_attempt(events, tmp_path: Path) -> None:
    begun = LaneStarted(at=1055.0, lane=2)
    run = fold([*events[:7], begun, *events[7:]])
    text = run_summary(run, tmp_path)
    assert "strategy loop: 2 lanes, together one attempt with this budget" in text
    table = attempts_table(run.attempts, run.best).splitlines()
    assert table[0].split() == ["LANE", "STEP", "TOOL", "CANDIDATE", "VERDICT", "RESULT"]
    assert [row.split()[:2] for row in table[1:]] == [["1", "1"], ["*", "2"]]
    plain_run = fold(events)
    assert "one attempt" not in run_summary(plain_run, tmp_path)
    assert "LANE" not in attempts_table(plain_run.attempts, plain_run.best)


def test_text() -> None:
    assert plain("a\tb\n\x1b[31mc\x00") == "a b\n�[31mc�"
    assert one_line("a\n b  c") == "a b c"
    assert one_line("x" * 20, 10) == "xxxxxxx..."
    assert columns([("a", "bb"), ("ccc", "")]) == "a    bb\nccc"
    assert columns([]) == ""
    assert [duration(seconds) for seconds in (45, 720, 12600)] == ["45 s", "12 min", "3.5 h"]
