"""`ringsmith mcp --http`: a real server, real ranks, the official client."""

import asyncio
import os
import re
import signal
import socket
import subprocess
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx2
import pytest
import uvicorn
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from harness import proc
from runs.record import Record
from service.mcp.http import Address, Rules, Sessions, application
from service.mcp.server import make
from tests.runs.factories import config
from tests.service.mcp_place import Place, Slow
from tests.service.test_end_to_end import RIGHT, ROOT, TINY, command
from tests.service.test_enter import WRONG, until

SECRET = "a-secret-of-20-chars"
TOKEN = {"Authorization": f"Bearer {SECRET}"}
START = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}},
}  # fmt: skip


class Served:
    """A server process, on a port of its own."""

    def __init__(self, root, *arguments, token=SECRET):
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        environment |= {"RINGSMITH_MCP_TOKEN": token} if token else {}
        self.root = root
        self.process = subprocess.Popen(
            command("mcp", "--http", "--port", 0, "--runs-dir", root, *arguments), cwd=ROOT, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        said = self.process.stderr.readline()
        self.url = re.search(r"http://\S+/mcp", said)[0]

    @asynccontextmanager
    async def client(self, stay=False, **options):
        async with httpx2.AsyncClient(headers=TOKEN, timeout=60) as http:
            wire = streamable_http_client(self.url, http_client=http, terminate_on_close=not stay)
            async with Client(wire, **options) as agent:
                yield agent

    def post(self, **headers):
        accept = {"Accept": "application/json, text/event-stream", **TOKEN}
        return httpx2.post(self.url, json=START, headers={**accept, **headers}, timeout=30)

    def stop(self):
        below = proc.descendants([self.process.pid])
        self.process.send_signal(signal.SIGTERM)
        out, said = self.process.communicate(timeout=60)
        assert out == ""
        until(lambda: not below & set(proc.parents()), seconds=10)
        return said


async def call(agent, name, **arguments):
    result = await agent.call_tool(name, arguments)
    return result.is_error, result.content[0].text


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path, "--problem", 1, *TINY)
    yield served
    served.process.kill()
    served.process.communicate()


def test_a_run_that_the_server_broke_off_is_resumed(served, tmp_path):
    async def act():
        # No mode given: the client asks for the protocol without sessions first, and is told which have some.
        async with served.client(stay=True) as agent:
            assert "Call the tool `task` first" in agent.instructions
            assert "Write `solution`" in (await call(agent, "task"))[1]
            await call(agent, "write_candidate", source=WRONG)
            assert "WRONG_VALUES" in (await call(agent, "run_benchmark"))[1]
            await call(agent, "write_candidate", source=RIGHT)
            long = asyncio.ensure_future(call(agent, "run_benchmark"))
            record = Record.list(tmp_path)[0]
            await asyncio.to_thread(until, lambda: record.run().spend.steps == 4)
            said = await asyncio.to_thread(served.stop)
            refused, told = await long
            assert refused and "told to stop" in told
        assert served.process.returncode == 130 and "ended: interrupted" in said
        run = record.run()
        assert (run.reason, run.config.model) == ("interrupted", "external:mcp")

    asyncio.run(act())
    again = Served(tmp_path, "--resume", "latest", "--idle", 1, token="")

    async def go_on():
        async with again.client(stay=True) as agent:
            refused, told = await call(agent, "task")
            assert not refused and "This run so far" in told and "wrong_values" in told
            # It makes no call for too long.
            last = Record.list(tmp_path)[0]
            await asyncio.to_thread(until, lambda: (end := last.finished()) is not None and end.final)
            assert last.run().reason == "model_stopped"

    try:
        asyncio.run(go_on())
        again.stop()
    finally:
        again.process.kill()
        again.process.communicate()


def test_only_those_are_let_in_who_may(served):
    assert served.post().status_code == 200
    assert served.post(Authorization=f"bearer {SECRET}").status_code == 200  # the scheme is in any case
    for wrong in ("Bearer wrong", f"Bearer {SECRET[:-1]}", f"Basic {SECRET}", SECRET):
        assert served.post(Authorization=wrong).status_code == 401
    assert served.post(Authorization="").headers["WWW-Authenticate"] == "Bearer"
    assert served.post(Host="evil.example").status_code == 421
    assert served.post(Origin="http://evil.example").status_code == 403
    assert served.post(Origin=served.url.removesuffix("/mcp")).status_code == 200
    assert served.post(**{"Mcp-Session-Id": "unknown"}).status_code == 404
    modern = served.post(**{"MCP-Protocol-Version": "2026-07-28"})
    assert modern.status_code == 400
    assert httpx2.get(served.url.removesuffix("/mcp"), headers=TOKEN).status_code == 404

    async def modern_only():
        async with served.client(mode="2026-07-28") as agent:
            with pytest.raises(MCPError, match="a run needs a session"):
                await agent.call_tool("task")

    asyncio.run(modern_only())
    assert not Record.list(served.root)
    served.stop()


@asynccontextmanager
async def in_process(open_run, **rules):
    """Sessions behind a real server, without a process of its own; its URL."""
    address = Address("127.0.0.1", 0)
    sessions = Sessions(open_run, Rules(**{"most": 2, "idle_s": 60.0, **rules}))
    app = application(make(config(), sessions.seat_of), sessions, address)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        serving = asyncio.ensure_future(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            await sessions.stop()
            server.should_exit = True
            await serving


def test_sessions_have_runs_of_their_own_which_end_with_them(tmp_path):
    session = Slow()
    place = Place(tmp_path, session)

    async def act():
        async with in_process(place, most=1) as url:
            async with Client(url) as first, Client(url) as second:
                await first.call_tool("write", {"source": "b"})
                await first.call_tool("bench")
                refused = await second.call_tool("task")
                assert refused.is_error and "1 runs are going on" in refused.content[0].text
            await asyncio.to_thread(until, lambda: place.record.finished() is not None)
            run = place.record.run()
            assert (run.reason, run.official.passed) == ("model_stopped", True)
            async with Client(url) as third:
                while (await third.call_tool("task")).is_error:
                    await asyncio.sleep(0.01)
                await third.call_tool("write", {"source": "a"})
            await asyncio.to_thread(until, lambda: place.record.finished() is not None)
            assert place.record.run_id != run.run_id

    asyncio.run(act())


def test_what_a_broken_connection_did_not_deliver_is_told_with_the_next_call(tmp_path):
    session = Slow()
    session.go_on.clear()

    async def act():
        async with in_process(Place(tmp_path, session)) as url, httpx2.AsyncClient(timeout=60) as http:
            headers = {"Accept": "application/json, text/event-stream"}
            begun = await http.post(url, json=START, headers=headers)
            headers["Mcp-Session-Id"] = begun.headers["Mcp-Session-Id"]

            async def tool(number, name, **arguments):
                params = {"name": name, "arguments": arguments}
                body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
                return (await http.post(url, json=body, headers=headers)).text

            await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
            assert "written" in await tool(2, "write", source="b")
            lost = asyncio.ensure_future(tool(3, "bench"))
            await asyncio.to_thread(session.asked.acquire)
            lost.cancel()
            await asyncio.wait([lost])
            await asyncio.sleep(0.2)  # the server notices
            session.go_on.set()
            told = await tool(4, "write", source="b")
            assert "bench returned, for which you stopped waiting" in told and "it passed" in told
            assert "bench returned" not in await tool(5, "write", source="b")

    asyncio.run(act())
    assert Record.list(tmp_path)[0].run().reason == "interrupted"


def test_a_server_in_a_hurry_breaks_off_grading_too(tmp_path):
    session = Slow()
    place = Place(tmp_path, session)

    async def act():
        sessions = Sessions(place, Rules(1, 60.0))
        context = SimpleNamespace(
            request=SimpleNamespace(headers={"mcp-session-id": "s"}), protocol_version="2025-06-18"
        )
        seat = sessions.seat_of(context)
        await seat.call("x", "write", {"source": "b"})
        await seat.call("x", "bench", {})
        session.go_on.clear()
        sessions.leave("s")
        while not session.asked.acquire(blocking=False) or not session.graded:
            await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(sessions.stop())
        await asyncio.sleep(0.3)
        assert not stopping.done()
        sessions.hurry()
        await stopping
        with pytest.raises(MCPError, match="told to stop"):
            sessions.seat_of(context)

    asyncio.run(act())
    assert place.record.run().reason == "interrupted"


def test_a_session_that_was_left_begins_no_second_run(tmp_path):
    place = Place(tmp_path, Slow())

    async def act():
        async with in_process(place, idle_s=0.2) as url, Client(url, mode="legacy") as agent:
            await agent.call_tool("write", {"source": "b"})
            await asyncio.to_thread(until, lambda: place.record.finished() is not None)
            with pytest.raises(MCPError, match="Connect anew"):
                await agent.call_tool("write", {"source": "b"})

    asyncio.run(act())
    assert place.agents == ["mcp"]
