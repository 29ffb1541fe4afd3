"""What a person sees of a run, from hand-made events."""

import io

from rich.console import Console

from harness.types import Stage
from runs.events import LaneStarted, ModelReplied
from runs.messages import Turn
from service.progress import RunProgress, stages
from tests.service.conftest import GOOD


def console(terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=terminal,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=True,
        width=120,
    )


def shown(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def test_a_run_reads_as_plain_lines_without_a_terminal(events) -> None:
    out = console()
    progress = RunProgress(out)
    for event in events:
        progress(event)
    assert shown(out).splitlines() == [
        "run 20261121-101500-p01-allreduce-3f2a: problem 1, case tiny, cpu x 2, float32, cpp, model replay:somewhere",
        "  target: as fast as it gets; budget: 5 steps, 1.00 USD, 10 min",
        "step 1/5: Start simple. One copy per peer.",
        "  run_benchmark: wrong_values, 3 of 16 elements wrong",
        "    best none yet; left: 4 steps, 0.90 USD, 10 min",
        "  loop: Go on.",
        "step 2/5: (calls run_benchmark)",
        "  run_benchmark: refused: run_benchmark: no argument 'fast'",
        "step 3/5: Two shots [bold red]now[/]�[2J",
        "  run_benchmark: passed, eager 1.50x [1.40, 1.60], device 1.20x [1.10, 1.30]",
        "    best at step 3 (eager 1.50x [1.40, 1.60], device 1.20x [1.10, 1.30]); left: 2 steps, 0.70 USD, 9 min",
        "finished: submitted",
    ]


def test_a_terminal_gets_the_same_lines_and_a_live_one(events) -> None:
    out = console(terminal=True)
    progress = RunProgress(out)
    for event in events:
        progress(event)
    text = shown(out)
    assert "waiting for the model; best none yet; left: 5 steps" in text
    assert "run_benchmark; best none yet; left: 4 steps" in text
    assert "Two shots [bold red]now[/]" in text
    assert "\x1b[2J" not in text.replace("\x1b[2K", "")


def test_close_ends_the_live_line_of_a_run_that_was_cut_short(events) -> None:
    out = console(terminal=True)
    progress = RunProgress(out)
    for event in events[:3]:
        progress(event)
    progress.close()
    progress.close()
    assert shown(out).count("\x1b[?25l") == shown(out).count("\x1b[?25h") == 1  # the cursor is hidden, then back


def test_stages_of_an_evaluation() -> None:
    out = console()
    with stages("a.py", out) as on_stage:
        on_stage(Stage.build)
        on_stage(Stage.correctness)
    assert shown(out).splitlines() == ["a.py: build", "a.py: correctness"]
    terminal = console(terminal=True)
    with stages("a.py", terminal) as on_stage:
        on_stage(Stage.build)
    assert "a.py: build" in shown(terminal)


def test_a_reply_is_shown_while_it_is_written(events) -> None:
    out = console(terminal=True)
    progress = RunProgress(out)
    progress(events[0])
    for word in range(30):
        progress.said(f"thought {word}\n", True)
    for piece in ("Two ", "shots\x1b[2J\x1b]0;title\x07 [bold]now[/]", "\nlast \u202eline"):
        progress.said(piece, False)
    region = progress._line._region
    with out.capture() as captured:
        out.print(region)
    lines = captured.get().splitlines()
    assert "thought 26" in lines[1] and "\x1b[2m" in lines[1]  # dimmed
    assert "Two shots�[2J�]0;title� [bold]now[/]" in lines[5] and "\x1b[2m" not in lines[5]
    assert "last �line" in lines[6]
    progress(events[1])
    assert progress._line._region.written == ()
    progress.close()
    assert "\x1b[2J" not in shown(out) and "\x07" not in shown(out)


def test_a_long_reply_costs_no_more_than_its_end(events) -> None:
    out = console(terminal=True)
    progress = RunProgress(out)
    progress(events[0])
    for piece in range(5000):
        progress.said(f"{piece} ", bool(piece % 2))
    written = progress._line._region.written
    assert sum(len(piece) for piece, _ in written) <= 2100 and written[-1][0] == "4999 "
    progress.said("x" * 100_000, False)
    assert sum(len(piece) for piece, _ in progress._line._region.written) <= 2100
    progress.close()
    progress.said("after the end", False)


def test_without_a_terminal_nothing_is_streamed(events) -> None:
    out = console()
    progress = RunProgress(out)
    progress(events[0])
    before = shown(out)
    progress.said("hello", False)
    assert shown(out) == before


def test_lanes_and_the_judge_are_named(events) -> None:
    out = console()
    progress = RunProgress(out)
    judged = ModelReplied(at=1071.0, step=4, turn=Turn(text="Fuse\nthem."), seconds=1.0, purpose="judge")
    bare = LaneStarted(at=1072.0, lane=2)
    branched = LaneStarted(at=1073.0, lane=3, text="Make it\nfaster.", topic="branch", candidate=GOOD.hash)
    for event in (*events[:-1], judged, bare, branched):
        progress(event)
    assert shown(out).splitlines()[-3:] == [
        "step 4/5: judge: Fuse them.",
        "lane 2 begins afresh: the task alone",
        f"lane 3 goes on from {GOOD.hash}: Make it faster.",
    ]
