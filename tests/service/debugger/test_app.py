"""Keys and panes, without a terminal."""

from __future__ import annotations

import asyncio

import pytest
from textual.widgets import DataTable, Static

from runs.events import AgentCalled
from service.debugger import help as keys
from service.debugger.app import Debugger
from service.debugger.code import highlighted
from service.debugger.screens import Leaving, Line, Reader
from tests.agent.test_loop import say
from tests.service.debugger.conftest import BETTER, BROKEN, GOOD, WRONG


def play(debugging, act, size=(80, 24), dark=True):
    """`act` gets the app and its pilot; what the app returned."""
    app = Debugger(debugging, dark=dark)

    async def session():
        async with app.run_test(size=size) as pilot:
            await act(app, pilot)

    asyncio.run(session())
    return app.return_value


async def settled(app, pilot):
    """Until nothing is under way and all of it is shown."""
    while app.debugging.doing is not None:
        await pilot.pause(0.01)
    app.look()
    await pilot.pause()


def shown(app, pane):
    return str(app.screen_stack[0].query_one(pane, Static).render())


def table(app):
    found = app.screen_stack[0].query_one(DataTable)
    return [[str(cell) for cell in found.get_row_at(at)] for at in range(found.row_count)]


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (30, 10)])
@pytest.mark.parametrize("dark", [True, False])
def test_every_size_and_theme_shows_what_is_worked_on(begin, size, dark):
    async def act(app, pilot):
        await pilot.press("c")
        await settled(app, pilot)
        assert "problem 1, case pkb" in shown(app, "#where") and shown(app, "#doing").startswith("ready")
        assert shown(app, "#said").startswith("compiled")
        assert table(app) == [[" >  1", "compiled", "", "you", app.debugging.journal.current[:8]]]
        assert app.query_one("#candidate").border_title == "candidate.py: attempt 1"
        assert app.dark == dark
        await pilot.press("t")
        assert app.dark != dark

    play(begin(), act, size, dark)


def test_a_compile_error_is_pointed_at(begin):
    async def act(app, pilot):
        await pilot.press("c")
        await settled(app, pilot)
        assert shown(app, "#code") == "❱1 x =\n 2 y = 3\n 3 "
        app.debugging.file.write(GOOD)
        app.look()
        assert shown(app, "#code") == " 1 x = 1\n 2 "
        assert app.query_one("#candidate").border_title == "candidate.py: edited"

    play(begin(text=BROKEN), act)


def test_attempts_are_looked_at_compared_and_branched_from(begin):
    async def act(app, pilot):
        await pilot.press("r")
        await settled(app, pilot)
        app.debugging.file.write(BETTER)
        await pilot.press("r")
        await settled(app, pilot)
        app.debugging.file.write(WRONG)
        await pilot.press("R")
        await settled(app, pilot)
        assert [row[0] for row in table(app)] == ["    1", "*   2", " >  3"]
        await pilot.press("tab", "tab", "up", "up", "space")
        assert [row[0] for row in table(app)] == ["  • 1", "*   2", " >  3"]
        await pilot.press("down", "d")
        assert isinstance(app.screen, Reader)
        said = "\n".join(str(part) for part in app.screen.query_one(Static).visual._renderable.renderables[:1])
        assert "- attempt 1" in said and "+ attempt 2" in said and "passed, eager 1.6" in said
        assert app.screen.query_one(Static).visual._renderable.renderables[1].plain.endswith("-x = 1\n+x = 2")
        await pilot.press("escape", "enter")
        assert isinstance(app.screen, Reader)
        await pilot.press("q", "b")
        await settled(app, pilot)
        assert app.debugging.file.read() == BETTER

    play(begin(), act)


def test_a_hint_is_asked_for_and_a_step_follows(begin):
    async def act(app, pilot):
        await pilot.press("h")
        assert isinstance(app.screen, Line)
        await pilot.press("escape", "h", *"push", "enter")
        await settled(app, pilot)
        assert shown(app, "#said").startswith("Yes.")
        assert "0.10 USD" in shown(app, "#doing")

    debugging = begin(say(("compile", "{}"), text="Yes."))
    play(debugging, act)
    assert "push" in debugging.model.seen[0][-2].text


def test_an_argument_is_asked_for_and_the_task_can_be_read(begin):
    async def act(app, pilot):
        await pilot.press("w")
        assert str(app.screen.query_one(Static).render()) == "be good\n\ndo it"
        await pilot.press("escape", "C", *"odd", "enter")
        await settled(app, pilot)
        assert "no argument 'case'" in shown(app, "#said"), "the tools here have none"
        await pilot.press("P", "enter")
        await settled(app, pilot)

    debugging = begin()
    play(debugging, act)
    calls = [event.call for event in debugging.record.events() if isinstance(event, AgentCalled)]
    assert [(call.name, call.arguments) for call in calls[1:]] == [("run_benchmark", '{"case": "odd"}')]


def test_a_file_is_saved_and_replaced_only_when_that_is_wanted(begin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def act(app, pilot):
        await pilot.press("s", "enter")
        assert (tmp_path / "p01_candidate.py").read_text() == GOOD
        app.debugging.file.write(BETTER)
        await pilot.press("s", "enter", "escape")
        assert (tmp_path / "p01_candidate.py").read_text() == GOOD
        await pilot.press("s", "enter", "enter")
        assert (tmp_path / "p01_candidate.py").read_text() == BETTER

    play(begin(), act)


def test_what_cannot_be_is_said_and_nothing_breaks(begin):
    async def act(app, pilot):
        for key in ("a", "h", "b", "d", "v", "space", "e", "escape"):
            await pilot.press(key)
        assert len(app.screen_stack) == 1 and len(app._notifications) >= 6
        await pilot.press("question_mark")
        assert isinstance(app.screen, Reader)
        await pilot.press("escape", "z")
        assert app.screen.maximized is not None
        await pilot.press("z")
        assert app.screen.maximized is None

    play(begin(), act)


def test_escape_breaks_off_and_once_more_leaves(begin, bench):
    bench.waits = True

    async def once(app, pilot):
        await pilot.press("r")
        await asyncio.to_thread(bench.at_work.wait, 30)
        await pilot.press("escape")
        await settled(app, pilot)
        assert app.debugging.agent.ended is None and "broken" in shown(app, "#said")

    debugging = begin()
    play(debugging, once)
    bench.at_work.clear()

    async def twice(app, pilot):
        await pilot.press("r")
        await asyncio.to_thread(bench.at_work.wait, 30)
        app.debugging.agent.stop = lambda: None  # a call that does not hear at once
        await pilot.press("escape", "ctrl+c")
        del app.debugging.agent.stop

    assert play(debugging, twice) == ""
    debugging.leave()
    assert debugging.agent.ended.reason == "interrupted"


def test_leaving_asks_whether_to_grade(begin, bench):
    async def act(app, pilot):
        await pilot.press("r")
        await settled(app, pilot)
        await pilot.press("q")
        assert isinstance(app.screen, Leaving)
        await pilot.press("escape", "ctrl+c")
        assert isinstance(app.screen, Leaving)
        await pilot.press("o")
        while app.return_value is None:
            await pilot.pause(0.01)

    debugging = begin()
    assert play(debugging, act) == ""
    assert bench.graded == [GOOD] and debugging.agent.ended.reason == "submitted"


def test_a_refused_submission_leaves_the_person_there(begin):
    async def act(app, pilot):
        await pilot.press("q", "o")
        await settled(app, pilot)
        assert app.return_value is None and "nothing to submit" in shown(app, "#said")
        await pilot.press("q", "l")

    assert play(begin(text=WRONG), act) == ""


def test_the_line_of_keys_fits_any_width():
    for width in range(10, 200):
        assert len(keys.keys(width)) <= width
    assert "q quit" in keys.keys(80).plain
    assert all(len(line) <= 76 for line in keys.HELP.splitlines())


def test_cuda_inside_python_has_its_own_colours_and_no_character_is_lost():
    source = (
        'S = r"""\n#include "ringsmith.h"\n__global__ void f(int n) { return; }\n"""\n\tT = \'\'\'words\'\'\'\n\x1b[2J'
    )
    text = highlighted(source, dark=True, marked={2})
    assert [line[3:] for line in text.plain.split("\n")] == source.replace("\t", "    ").replace(
        "\x1b", "\ufffd"
    ).split("\n")
    assert text.plain.split("\n")[1].startswith("❱2 ")

    def styles(word):
        at = text.plain.index(word)
        return {str(span.style) for span in text.spans if span.start <= at < span.end}

    assert styles("return") != styles("words") and styles("return") != styles("T =")
    assert styles("T =") == styles("S ="), "after the string it is Python again"
