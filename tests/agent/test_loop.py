"""The loop with a scripted model, a session that answers from a table, and real tools, record and meter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.loop import run_loop
from agent.models.base import ModelError
from agent.models.replay import REPLAY_END
from harness.errors import HarnessError, UsageError
from harness.types import Candidate, Evaluation, Verdict
from runs.events import Budget, Event, ModelReplied, RunConfig, RunFinished, Target, ToolReturned, UserMessage
from runs.fold import Run
from runs.messages import Message, ToolCall, Turn, Usage
from runs.record import Record
from tests.runs.factories import candidate, config, evaluation, measurement
from tools.base import Tool, ToolError, ToolResult

MESSAGES = (Message(role="system", text="be good"), Message(role="user", text="do it"))


class Clock:
    """Every reading is a second later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def say(*calls: tuple[str, str], text: str = "", **changed: Any) -> Turn:
    made = tuple(ToolCall(id=f"c{n}", name=name, arguments=arguments) for n, (name, arguments) in enumerate(calls))
    usage = Usage(input_tokens=90, output_tokens=10)
    return Turn(**{"text": text, "tool_calls": made, "usage": usage, "cost_usd": 0.1, **changed})


def write(source: str) -> tuple[str, str]:
    return "write", f'{{"source": "{source}"}}'


BENCH, SUBMIT = ("bench", "{}"), ("submit", "{}")


@dataclass
class Scripted:
    """Gives its turns in order, or raises them."""

    turns: list[Turn | BaseException]
    name: str = "scripted"
    known_price: bool = True
    seen: list[list[Message]] = field(default_factory=list)
    judged: list[Turn] = field(default_factory=list)
    """What it says when it is asked without tools."""
    asked: list[list[Message]] = field(default_factory=list)

    def priced(self) -> bool:
        return self.known_price

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        if not tools:
            self.asked.append(list(messages))
            return self.judged.pop(0)
        assert {tool["name"] for tool in tools} == {"write", "bench", "submit"}
        self.seen.append(list(messages))
        turn = self.turns.pop(0) if self.turns else Turn(stop=REPLAY_END)
        if isinstance(turn, BaseException):
            raise turn
        return turn


@dataclass
class FakeSession:
    """`answers[source]`: the evaluations of that text in order, or failures; the last repeats."""

    answers: dict[str, list[Evaluation | BaseException]] = field(default_factory=dict)
    current: Candidate | None = None
    graded: list[str] = field(default_factory=list)
    lanes: list[str | None] = field(default_factory=list)

    def evaluate(self) -> Evaluation:
        assert self.current
        left = self.answers[self.current.source]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def begin_lane(self, with_candidate: Candidate | None) -> None:
        self.current = with_candidate
        self.lanes.append(with_candidate.source if with_candidate else None)

    def official(self, of: Candidate) -> Evaluation:
        self.graded.append(of.source)
        self.current = of
        return self.evaluate()


def write_tool(session: FakeSession, source: str) -> ToolResult:
    """Write.

    Arguments:
    source: the text
    """
    session.current = candidate(source)
    return ToolResult("written", candidate=session.current)


def bench_tool(session: FakeSession) -> ToolResult:
    """Measure."""
    measured = session.evaluate()
    return ToolResult(measured.summary, candidate=session.current, evaluation=measured, device_s=measured.device_s)


def submit_tool(session: FakeSession) -> ToolResult:
    """Be done."""
    return ToolResult("submitted", submitted=True)


TOOLS = {
    tool.name: tool for tool in (Tool("write", write_tool), Tool("bench", bench_tool), Tool("submit", submit_tool))
}


class Toolbox:
    """As `tools.catalogue`, with three tools."""

    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in TOOLS.values()]

    def call(self, session: Any, name: str, arguments: str) -> ToolResult:
        try:
            if name not in TOOLS:
                raise ToolError(f"no tool {name!r}")
            return TOOLS[name].call(session, arguments)
        except ToolError as error:
            return ToolResult(str(error), ok=False)


def speed(source: str, eager: float, device: float | None = None) -> Evaluation:
    return evaluation(candidate(source), measured=measurement(eager, device))


def wrong(source: str, verdict: Verdict = Verdict.wrong_values) -> Evaluation:
    return evaluation(candidate(source), verdict)


@dataclass
class Outcome:
    run: Run
    events: list[Event]
    model: Scripted
    session: FakeSession

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class Play:
    """Plays turns against a session and checks what must hold for every run."""

    root: Path

    def __call__(
        self,
        turns: list[Turn | BaseException],
        session: FakeSession | None = None,
        settings: RunConfig | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> Outcome:
        model, session, heard = Scripted(turns), session or FakeSession(), []

        def hear(event: Event) -> None:
            heard.append(event)
            on_event(event)

        with Record.create(self.root, "r") as record:
            run = run_loop(
                settings or config(),
                model,
                session,
                record,
                MESSAGES,
                hear,
                prompts_hash="h",
                toolbox=Toolbox(),
                clock=Clock(),
            )
            assert record.run() == run
            events = list(record.events())
        assert events == heard
        assert [event.kind for event in events].count("run_finished") == 1
        assert isinstance(events[-1], RunFinished) and events[-1].spend == run.spend
        assert run.status == "finished"
        return Outcome(run, events, model, session)


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


def test_a_run_to_its_target(play: Play) -> None:
    session = FakeSession({"a": [wrong("a")], "b": [speed("b", 1.1), speed("b", 1.2)]})
    outcome = play(
        [say(write("a"), BENCH, text="try"), say(write("b"), BENCH)], session, config(target=Target(speedup=1.0))
    )
    run = outcome.run
    assert (run.reason, run.target_met, run.run_id) == ("target_met", True, "r")
    assert run.best and run.best.candidate == candidate("b").hash
    assert session.graded == ["b"]
    assert run.official == speed("b", 1.2)
    assert (run.spend.steps, run.spend.tokens, run.spend.device_s) == (2, 200, 6.0)
    assert [event.kind for event in outcome.events] == [
        "run_started",
        *["model_replied", "tool_returned", "tool_returned"] * 2,
        "run_finished",
    ]
    # The second request holds all that happened, tool results tied to their calls and ending with the budget.
    roles = [(message.role, message.call_id) for message in outcome.model.seen[1]]
    assert roles == [("system", ""), ("user", ""), ("assistant", ""), ("tool", "c0"), ("tool", "c1")]
    assert outcome.model.seen[1][-1].text == "it wrong_values\n\nBudget left: 19 of 20 replies."


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (speed("a", 1.0), "model_stopped"),  # the lower bound must be above
        (speed("a", 1.5, 0.9), "model_stopped"),  # the device's figure counts where there is one
        (speed("a", 0.9, 1.5), "target_met"),
        (evaluation(candidate("a")), "model_stopped"),  # passed, not measured
    ],
)
def test_what_meets_a_target(play: Play, measured: Evaluation, reason: str) -> None:
    outcome = play([say(write("a"), BENCH)], FakeSession({"a": [measured]}), config(target=Target(speedup=1.0)))
    assert outcome.run.reason == reason
    assert outcome.run.target_met is (reason == "target_met")


def test_the_official_evaluation_has_the_last_word(play: Play) -> None:
    session = FakeSession({"a": [speed("a", 1.5), wrong("a", Verdict.race)]})
    run = play([say(write("a"), BENCH)], session, config(target=Target(speedup=1.0))).run
    assert (run.reason, run.target_met) == ("target_met", False)
    assert run.official and run.official.verdict is Verdict.race


def test_submit_ends_the_run_and_later_calls_are_not_made(play: Play) -> None:
    session = FakeSession({"a": [speed("a", 2.0)], "b": [speed("b", 1.5)]})
    outcome = play([say(write("a"), BENCH), say(write("b"), BENCH, SUBMIT, write("c"))], session)
    assert outcome.run.reason == "submitted"
    assert session.graded == ["a"], "the best, not the last"
    assert outcome.run.target_met  # without a speed-up to reach, being correct is the target
    assert [attempt.candidate for attempt in outcome.run.attempts][-1] == candidate("b").hash


def test_nothing_to_grade(play: Play) -> None:
    outcome = play([say(write("a"), BENCH, SUBMIT)], FakeSession({"a": [wrong("a")]}))
    assert (outcome.run.reason, outcome.run.best, outcome.run.official, outcome.run.target_met) == (
        "submitted",
        None,
        None,
        False,
    )
    assert outcome.session.graded == []


def test_two_nudges_then_the_model_has_stopped(play: Play) -> None:
    idle = say(text="let me think")
    outcome = play([idle, say(write("a")), idle, idle, idle, say(SUBMIT)])
    assert outcome.run.reason == "model_stopped"
    assert len(outcome.of(UserMessage)) == 3
    assert outcome.run.spend.steps == 5
    assert outcome.model.seen[1][-1].role == "user" and "called no tool" in outcome.model.seen[1][-1].text


def test_the_end_of_a_replay_is_not_a_step(play: Play) -> None:
    outcome = play([say(write("a"))])
    assert (outcome.run.reason, outcome.run.spend.steps, outcome.of(UserMessage)) == ("model_stopped", 1, [])


@pytest.mark.parametrize(
    ("budget", "reason", "steps", "calls"),
    [
        (Budget(steps=2), "budget: steps", 2, 4),  # the last reply's calls are still made
        (Budget(tokens=150), "budget: tokens", 2, 4),
        (Budget(usd=0.05), "budget: usd", 1, 2),
        (Budget(device_s=2.0), "budget: device_s", 1, 2),
        (Budget(device_s=3.0), "budget: device_s", 2, 4),
        (Budget(steps=0), "budget: steps", 0, 0),
    ],
)
def test_budgets(play: Play, budget: Budget, reason: str, steps: int, calls: int) -> None:
    session = FakeSession({"a": [wrong("a")]})
    outcome = play([say(write("a"), BENCH) for _ in range(5)], session, config(budget=budget))
    assert (outcome.run.reason, outcome.run.spend.steps) == (reason, steps)
    assert len(outcome.of(ToolReturned)) == calls


def test_device_and_wall_time_are_checked_between_calls(play: Play) -> None:
    session = FakeSession({"a": [wrong("a")]})
    outcome = play([say(write("a"), BENCH, BENCH, BENCH)], session, config(budget=Budget(device_s=4.0)))
    assert (outcome.run.reason, len(outcome.of(ToolReturned))) == ("budget: device_s", 3)
    assert outcome.of(ToolReturned)[-1].text.endswith("0 of 4 device-seconds.")


def test_wall_time(play: Play) -> None:
    outcome = play([say(*[write("a")] * 100)], settings=config(budget=Budget(wall_s=30.0)))
    assert outcome.run.reason == "budget: wall_s"
    assert 1 < len(outcome.of(ToolReturned)) < 30


def test_wrong_calls_are_answered(play: Play) -> None:
    turns: list[Turn | BaseException] = [
        say(("wriet", "{}"), ("write", "{broken"), ("write", "[]"), ("write", "{}"), ("write", '{"source": 1}')),
        say(SUBMIT),
    ]
    outcome = play(turns)
    assert outcome.run.reason == "submitted"
    answers = [event for event in outcome.of(ToolReturned) if not event.ok]
    assert len(answers) == 5
    for event, text in zip(
        answers, ("no tool 'wriet'", "not valid JSON", "JSON object", "missing", "type string"), strict=True
    ):
        assert text in event.text
        assert event.text.endswith("Budget left: 19 of 20 replies.")


def test_a_reply_is_on_disk_before_it_is_acted_on(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk: list[list[str]] = []
    real = Toolbox.call

    def look(self: Toolbox, session: Any, name: str, arguments: str) -> ToolResult:
        on_disk.append([event.kind for event in Record.open(play.root / "r").events()])
        return real(self, session, name, arguments)

    monkeypatch.setattr(Toolbox, "call", look)
    play([say(write("a"), SUBMIT)])
    assert on_disk == [["run_started", "model_replied"], ["run_started", "model_replied", "tool_returned"]]
    assert (play.root / "r" / "candidates" / f"{candidate('a').hash}.py").read_text() == "a"


def test_opaque_fields_go_back_to_the_provider(play: Play) -> None:
    outcome = play([say(write("a"), opaque={"thinking_blocks": ["x"]}), say(SUBMIT)])
    assert outcome.model.seen[1][2].opaque == {"thinking_blocks": ["x"]}


def test_interrupt_while_the_model_thinks(play: Play) -> None:
    outcome = play([say(write("a"), BENCH), KeyboardInterrupt()], FakeSession({"a": [speed("a", 2.0)]}))
    assert (outcome.run.reason, outcome.run.official, outcome.run.target_met) == ("interrupted", None, False)
    assert outcome.run.best and outcome.session.graded == []
    assert len(outcome.of(ToolReturned)) == 2


def test_interrupt_while_a_tool_works(play: Play) -> None:
    outcome = play([say(write("a"), BENCH)], FakeSession({"a": [KeyboardInterrupt()]}))
    assert outcome.run.reason == "interrupted"
    assert len(outcome.of(ModelReplied)) == 1
    assert outcome.run.spend.tokens == 100


def test_interrupt_during_the_official_evaluation(play: Play) -> None:
    outcome = play([say(write("a"), BENCH, SUBMIT)], FakeSession({"a": [speed("a", 2.0), KeyboardInterrupt()]}))
    assert (outcome.run.reason, outcome.run.official) == ("interrupted", None)
    assert outcome.run.best


def test_interrupt_while_an_event_is_passed_on(play: Play) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, ModelReplied):
            raise KeyboardInterrupt

    outcome = play([say(write("a"))], on_event=interrupt)
    assert (outcome.run.reason, len(outcome.of(ModelReplied))) == ("interrupted", 1)


def test_a_provider_that_fails_for_good(play: Play) -> None:
    session = FakeSession({"a": [speed("a", 2.0)]})
    outcome = play([say(write("a"), BENCH), ModelError("x/y: AuthenticationError: no")], session)
    assert outcome.run.reason == "error: x/y: AuthenticationError: no"
    assert session.graded == ["a"], "what was reached before is still graded"


def test_one_harness_failure_is_told_and_survived(play: Play) -> None:
    session = FakeSession({"a": [HarnessError("rank 1 never started"), speed("a", 2.0)]})
    outcome = play([say(write("a"), BENCH, BENCH, SUBMIT)], session)
    assert outcome.run.reason == "submitted"
    failed = outcome.of(ToolReturned)[1]
    assert not failed.ok and failed.evaluation is None
    assert "not the candidate's fault" in failed.text and "rank 1 never started" in failed.text


def test_three_harness_failures_end_the_run(play: Play) -> None:
    down: list[Evaluation | BaseException] = [HarnessError("no device")]
    # Writing between them does not show that the harness works; a measurement does.
    session = FakeSession({"a": [HarnessError("x"), HarnessError("x"), wrong("a")], "b": down})
    outcome = play([say(write("a"), BENCH, BENCH, BENCH), *[say(write("b"), BENCH) for _ in range(9)]], session)
    assert outcome.run.reason == "error: harness: no device"
    assert outcome.run.spend.steps == 4


def test_a_harness_that_cannot_grade(play: Play) -> None:
    session = FakeSession({"a": [speed("a", 2.0), HarnessError("node lost")]})
    run = play([say(write("a"), BENCH, SUBMIT)], session).run
    assert (run.reason, run.official) == ("error: harness: node lost", None)
    assert run.best


def test_a_bug_of_ours_is_recorded_and_raised(play: Play) -> None:
    with pytest.raises(ZeroDivisionError):
        play([say(write("a"), BENCH)], FakeSession({"a": [ZeroDivisionError("oops")]}))
    finished = Record.open(play.root / "r").finished()
    assert finished and finished.reason == "error: ZeroDivisionError: oops"


def test_a_usd_limit_on_an_unknown_price_fails_at_the_start(tmp_path: Path) -> None:
    model = Scripted([say(SUBMIT)], known_price=False)
    with Record.create(tmp_path, "r") as record, pytest.raises(UsageError, match="price of scripted is unknown"):
        run_loop(
            config(budget=Budget(usd=1.0)),
            model,
            FakeSession(),
            record,
            MESSAGES,
            lambda event: None,
            prompts_hash="h",
            toolbox=Toolbox(),
        )
    assert model.seen == []
    assert not (tmp_path / "r" / "events.jsonl").exists()
