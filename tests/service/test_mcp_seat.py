"""The place of one agent, and what it sees there: hand-made answers, the official client without a transport."""

import asyncio
import threading
import time

import pytest
from mcp import Client, MCPError

from agent import running
from harness.errors import HarnessError
from runs import control
from runs.control import Request
from runs.events import Budget
from service.mcp import server as server_module
from service.mcp.seat import NotOpenError, Seat, StoppedError
from service.mcp.server import agent_name, instructions, make
from tests.runs.factories import config
from tests.service.mcp_place import Place, Slow
from tools import catalogue


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, Slow())


def client(seat, agent=""):
    return Client(make(config(), lambda context: seat, agent))


async def threaded(what, *arguments):
    return await asyncio.to_thread(what, *arguments)


def test_an_agent_sees_the_tools_of_every_model_and_the_task_in_three_ways(place):
    async def act():
        seat = Seat(place)
        async with client(seat) as agent:
            said = instructions(config())
            assert agent.instructions == said and len(said.encode()) < 2048  # Claude Code shows no more of it
            tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
            assert [*tools] == ["task", *catalogue.TOOLS]
            assert all(len(tool.description.encode()) < 2048 for tool in tools.values())
            for schema in catalogue.schemas():
                tool = tools[schema["name"]]
                assert (tool.description, tool.input_schema) == (schema["description"], schema["parameters"])
            assert {name for name, tool in tools.items() if tool.annotations.read_only_hint} == {
                "task", "read", "inspect_failure",
            }  # fmt: skip
            (prompt,), (resource,) = (await agent.list_prompts()).prompts, (await agent.list_resources()).resources
            assert not place.agents  # a client that only looks begins no run
            texts = [
                (await agent.call_tool("task")).content[0].text,
                (await agent.get_prompt(prompt.name)).messages[0].content.text,
                (await agent.read_resource(resource.uri)).contents[0].text,
            ]
            assert len(set(texts)) == 1
            for part in (said, "be good", "do it", "20 of 20 tool calls"):
                assert part in texts[0]
            assert "This run so far" not in texts[0]
            for asked in (agent.get_prompt("nope"), agent.read_resource("ringsmith://nope")):
                with pytest.raises(MCPError, match="there is"):
                    await asked
        assert (await seat.leave()).reason == "model_stopped"
        assert seat.run.spend.steps == 0 and place.agents == ["mcp"]

    asyncio.run(act())


def test_a_run_is_led_graded_and_its_machine_given_back_at_once(place):
    async def act():
        seat = Seat(place)
        async with client(seat, agent="somebody") as agent:
            failed = await agent.call_tool("bench", {"case": 1})
            assert failed.is_error and "no argument" in failed.content[0].text
            for source in "ab":
                assert not (await agent.call_tool("write", {"source": source})).is_error
                assert not (await agent.call_tool("bench")).is_error
            so_far = (await agent.call_tool("task")).content[0].text
            assert "attempt 1" in so_far and "wrong_values" in so_far and "15 of 20 tool calls" in so_far
            assert place.open
            ended = await agent.call_tool("submit")
            assert "ended (submitted)" in ended.content[0].text and "1.60x [1.50, 1.70]" in ended.content[0].text
            assert str(place.record.path) in ended.content[0].text
            assert not place.open
            late = await agent.call_tool("bench")
            assert late.is_error and "no further call" in late.content[0].text
            assert "ended (submitted)" in (await agent.call_tool("task")).content[0].text
        run = await seat.leave()
        assert run == place.record.run()
        assert (run.reason, run.config.model, run.official.passed) == ("submitted", "external:somebody", True)

    asyncio.run(act())


def test_a_call_that_the_client_gives_up_goes_on_and_is_told_with_the_next(place, monkeypatch):
    monkeypatch.setattr(server_module, "PROGRESS_S", 0.05)
    heard = []

    async def progress(seconds, total, message):
        heard.append((seconds, message))

    async def act():
        seat = Seat(place)
        async with client(seat) as agent:
            await agent.call_tool("write", {"source": "a"})
            place.session.go_on.clear()
            long = asyncio.ensure_future(agent.call_tool("bench", progress_callback=progress))
            await threaded(place.session.asked.acquire)
            while len(heard) < 3:
                await asyncio.sleep(0.01)
            long.cancel()
            await asyncio.wait([long])
            # One that has not begun is not made.
            waiting = asyncio.ensure_future(agent.call_tool("write", {"source": "b"}))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
            place.session.go_on.set()
            answer = await agent.call_tool("write", {"source": "b"})
            assert "bench returned, for which you stopped waiting" in answer.content[0].text
            assert "it wrong_values" in answer.content[0].text and "written" in answer.content[0].text
            assert "stopped waiting" not in (await agent.call_tool("bench")).content[0].text
        assert (await seat.leave()).spend.steps == 4

    asyncio.run(act())
    assert [message for _, message in heard[:1]] == ["bench: 0 s"] and heard == sorted(heard)


def test_what_cannot_be_opened_is_said_and_tried_again(place):
    place.faults = [HarnessError("the disk is full")]

    async def act():
        seat = Seat(place)
        async with client(seat) as agent:
            refused = await agent.call_tool("task")
            assert refused.is_error and "could not be opened: the disk is full" in refused.content[0].text
            assert isinstance(seat.failure, HarnessError)
            assert "do it" in (await agent.call_tool("task")).content[0].text
            assert seat.failure is None
        await seat.leave()
        place.faults = [KeyError("a bug")]
        failed = Seat(place)
        with pytest.raises(NotOpenError, match="internal: KeyError"):
            await failed.call("x", "bench", {})
        assert await failed.leave() is None
        assert await Seat(place).leave() is None

    asyncio.run(act())


def test_places_are_shared_and_free_once_a_run_has_ended(place):
    async def act():
        places = threading.BoundedSemaphore(1)
        first, second = Seat(place, places, 1), Seat(place, places, 1)
        await first.call("x", "write", {"source": "b"})
        with pytest.raises(NotOpenError, match="1 runs are going on"):
            await second.task("y")
        await first.call("x", "bench", {})
        await first.call("x", "submit", {})
        assert "do it" in await second.task("y")
        await second.leave()
        await first.leave()
        assert places.acquire(blocking=False)

    asyncio.run(act())


def test_to_be_told_to_stop_breaks_a_call_off_and_leaves_a_run_that_can_be_resumed(place):
    async def act():
        seat = Seat(place)
        await seat.call("x", "write", {"source": "b"})
        place.session.go_on.clear()
        call = asyncio.ensure_future(seat.call("x", "bench", {}))
        await threaded(place.session.asked.acquire)
        seat.interrupt()
        with pytest.raises(StoppedError):
            await call
        assert (await seat.leave()).reason == "interrupted"
        idle = Seat(place)
        await idle.call("x", "write", {"source": "b"})
        idle.interrupt()
        await idle.leave()

    asyncio.run(act())
    assert not place.open and not place.record.finished().final
    assert not place.session.graded


def test_leaving_ends_a_call_that_a_person_holds(place, monkeypatch):
    monkeypatch.setattr(running, "POLL_S", 0.01)

    async def act():
        seat = Seat(place)
        await seat.call("x", "write", {"source": "b"})
        await seat.call("x", "bench", {})
        control.send(place.record.path, Request(action="pause"))
        held = asyncio.ensure_future(seat.call("x", "bench", {}))
        deadline = time.monotonic() + 30
        while place.record.run().status != "paused":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        run = await seat.leave()
        assert (run.reason, run.official.passed) == ("model_stopped", True)
        assert (await held).ended

    asyncio.run(act())


def test_the_budget_ends_the_run(tmp_path):
    place = Place(tmp_path, Slow(), budget=Budget(steps=1))

    async def act():
        seat = Seat(place)
        await seat.call("x", "write", {"source": "b"})
        answer = await seat.call("x", "bench", {})
        assert (answer.ok, answer.ended) == (False, True) and "budget: steps" in answer.text
        await seat.leave()

    asyncio.run(act())


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("claude-code", "claude-code"),
        ("Gemini CLI (v1)\n", "Gemini-CLI-v1"),
        ("", "mcp"),
        ("\x1b[2J", "2J"),
        ("é" * 99, "é" * 60),
    ],
)
def test_a_client_names_the_agent(client, name):
    assert agent_name(client) == name
