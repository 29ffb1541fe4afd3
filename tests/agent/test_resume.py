"""A run that is killed after any of its events goes on to the same end, without asking twice for what it had."""

from __future__ import annotations

import json
import shutil

import pytest

from agent import prices
from agent.conversation import Conversation
from agent.loop import resume_loop, run_loop
from harness.types import Verdict
from runs.events import Budget, ModelReplied, RunFinished, RunResumed, Target
from runs.fold import fold
from runs.record import Record
from service.render import run_summary
from tests.agent.test_loop import (
    BENCH,
    MESSAGES,
    SUBMIT,
    Clock,
    FakeSession,
    Scripted,
    Toolbox,
    say,
    speed,
    write,
    wrong,
)
from tests.runs.factories import candidate, config

TURNS = (
    say(write("a"), BENCH),
    say(text="let me think"),
    say(write("b"), BENCH, text="better"),
    say(("nonsense", "{}")),
    say(write("c"), BENCH, BENCH),
    say(SUBMIT),
)
ANSWERS = {
    "a": [wrong("a", Verdict.wrong_values)],
    "b": [speed("b", 1.5)],
    "c": [speed("c", 1.2)],
}
ENDINGS = {
    "submitted": (TURNS, {}),
    "budget: steps": (TURNS, {"budget": Budget(steps=3)}),
    "budget: tokens": (TURNS, {"budget": Budget(tokens=350)}),
    "target_met": (TURNS, {"target": Target(speedup=1.3)}),
    "model_stopped": ((*TURNS[:3], say(text="x"), say(text="y"), say(text="z")), {}),
}


def scripted(turns, heard=0):
    return Scripted(list(turns[heard:]))


def told(events):
    """What must not depend on when the process was killed."""
    rows = []
    for event in events:
        if isinstance(event, RunResumed):
            continue
        row = event.model_dump(mode="json", exclude={"at", "seconds", "text", "run_id"})
        if isinstance(event, RunFinished):
            row["spend"].pop("wall_s")
        rows.append(json.dumps(row, sort_keys=True))
    return rows


@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_after_any_event(tmp_path, ending):
    turns, changed = ENDINGS[ending]
    events = killed_after_any_event(tmp_path, config(**changed), turns, ANSWERS)
    assert isinstance(events[-1], RunFinished) and events[-1].reason == ending


def killed_after_any_event(tmp_path, settings, turns, answers, judged=()):
    """The events of the whole run, once every prefix of them was found to lead to the same ones."""
    whole = Record.create(tmp_path, "whole")
    run_loop(
        settings, Scripted(list(turns), judged=list(judged)), FakeSession(dict(answers)), whole, MESSAGES,
        lambda event: None, prompts_hash="h", toolbox=Toolbox(), clock=Clock(),
    )  # fmt: skip
    whole.close()
    events = list(whole.events())
    lines = (whole.path / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for kept in range(1, len(lines)):
        path = tmp_path / f"killed-{kept}"
        shutil.copytree(whole.path, path)
        # A torn line after the last event, as a killed writer leaves it.
        (path / "events.jsonl").write_text("".join(lines[:kept]) + lines[kept][:20], encoding="utf-8")
        record = Record.open(path)
        before = list(record.events())
        talk = Conversation(before)
        model = Scripted(list(turns[talk.replies :]), judged=list(judged[talk.judged :]))
        session = FakeSession(dict(answers), next((c for c in map(candidate, answers) if c.hash == talk.current), None))
        resume_loop(model, session, record, lambda event: None, toolbox=Toolbox(), clock=Clock())
        record.close()
        assert told(list(record.events())) == told(events), kept
        asked = talk.replies + talk.judged + len(model.seen) + len(model.asked)
        assert asked >= sum(isinstance(event, ModelReplied) for event in events)
        # The conversation is the one that was broken off.
        for seen in model.seen[:1]:
            assert seen == _asked_with(events, talk.replies)
        shutil.rmtree(path)
    return events


def _asked_with(events, replies):
    """The messages that the model has before it when it is asked for its reply number `replies`."""
    talk = Conversation()
    for event in events:
        if isinstance(event, ModelReplied) and not event.purpose and talk.replies == replies:
            break
        talk.add(event)
    return talk.messages


def test_time_between_processes_counts_for_nothing(tmp_path):
    record = Record.create(tmp_path, "r")
    clock = Clock()
    run_loop(
        config(), scripted(TURNS), FakeSession(dict(ANSWERS)), record, MESSAGES, lambda event: None,
        prompts_hash="h", toolbox=Toolbox(), clock=clock,
    )  # fmt: skip
    record.close()
    events = record.path / "events.jsonl"
    lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
    events.write_text("".join(lines[:4]), encoding="utf-8")
    before = fold(record.events()).spend.wall_s
    clock.now += 100_000
    session = FakeSession(dict(ANSWERS), candidate("a"))
    run = resume_loop(scripted(TURNS, 2), session, record, lambda event: None, toolbox=Toolbox(), clock=clock)
    assert run.status == "finished" and before < run.spend.wall_s < 1000
    assert fold(record.events()).spend.wall_s == run.spend.wall_s
    record.close()


def test_prices_are_kept_and_others_at_a_resume_are_said(tmp_path, monkeypatch):
    monkeypatch.delenv(prices.VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def resumed(name):
        path = shutil.copytree(tmp_path / "r", tmp_path / name)
        lines = (path / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (path / "events.jsonl").write_text("".join(lines[:4]), encoding="utf-8")
        record, model = Record.open(path), scripted(TURNS, 2)
        model.name = "google/gemini-3.1-pro-preview"
        session = FakeSession(dict(ANSWERS), candidate("a"))
        run = resume_loop(model, session, record, lambda event: None, toolbox=Toolbox(), clock=Clock())
        record.close()
        return run.prices, next(event for event in record.events() if isinstance(event, RunResumed))

    record, model = Record.create(tmp_path, "r"), scripted(TURNS)
    model.name = "google/gemini-3.1-pro-preview"
    run = run_loop(
        config(), model, FakeSession(dict(ANSWERS)), record, MESSAGES, lambda event: None,
        prompts_hash="h", toolbox=Toolbox(), clock=Clock(),
    )  # fmt: skip
    record.close()
    (first,) = run.prices
    assert first.table == prices.version() and first.rates.output == 12.0
    assert [(tier.above, tier.output) for tier in first.tiers] == [(200_000, 18.0)]
    assert record.started().prices == first
    shown = run_summary(run, record.path)
    assert f"priced by table {first.table}: input 2, cached 0.2, output 12; above 200000 tokens input 4" in shown

    same, event = resumed("same")
    assert same == (first,) and event.prices is None
    mine = tmp_path / "mine.toml"
    mine.write_text('[[prices]]\nprovider = "google"\nmodels = ["gemini-3.1*"]\ninput = 1.0\noutput = 3.0\n')
    monkeypatch.setenv(prices.VARIABLE, str(mine))
    (before, then), event = resumed("other")
    assert before == first and then == event.prices and then.rates.output == 3.0 and then.table.startswith(first.table)
    # A record from before prices were kept.
    lines = (record.path / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    old = json.loads(lines[0])
    del old["prices"]
    (record.path / "events.jsonl").write_text("".join([json.dumps(old) + "\n", *lines[1:]]), encoding="utf-8")
    assert record.run().prices == () and "priced by" not in run_summary(record.run(), record.path)
    assert resumed("old")[1].prices is None
