"""`ringsmith mcp --http`: a real server, real ranks, the official client."""

import asyncio
import os
import re
import signal
import subprocess
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from harness import proc
from runs.record import Record
from tests.service.test_end_to_end import RIGHT, ROOT, TINY, command
from tests.service.test_enter import WRONG, until

TOKEN = {"Authorization": "Bearer secret"}
START = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}},
}  # fmt: skip


class Served:
    """A server process, on a port of its own."""

    def __init__(self, root, *arguments, token="secret"):
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
    served = Served(tmp_path, "--problem", 1, *TINY, "--max-runs", 1)
    yield served
    served.process.kill()
    served.process.communicate()


def test_sessions_have_runs_of_their_own_and_what_is_broken_off_is_resumed(served, tmp_path):
    async def act():
        # No mode given: the client asks for the protocol without sessions first, and is told which have some.
        async with served.client() as first, served.client() as second:
            assert "9 of" not in first.instructions and "Call the tool `task` first" in first.instructions
            assert not (await call(first, "write_candidate", source=RIGHT))[0]
            refused, told = await call(second, "task")
            assert refused and "1 runs are going on" in told
        # Both have ended their sessions: the run ends, and makes room.
        record = Record.list(tmp_path)[0]
        await asyncio.to_thread(until, lambda: record.finished() is not None)
        run = record.run()
        assert (run.reason, run.config.model) == ("model_stopped", "external:mcp")
        async with served.client(stay=True) as third:
            while (await call(third, "task"))[0]:
                await asyncio.sleep(0.1)
            await call(third, "write_candidate", source=WRONG)
            assert "WRONG_VALUES" in (await call(third, "run_benchmark"))[1]
            await call(third, "write_candidate", source=RIGHT)
            long = asyncio.ensure_future(call(third, "run_benchmark"))
            last = Record.list(tmp_path)[0]
            await asyncio.to_thread(until, lambda: last.run().spend.steps == 4)
            said = await asyncio.to_thread(served.stop)
            refused, told = await long
            assert refused and "told to stop" in told
        assert served.process.returncode == 130 and "ended: interrupted" in said
        assert last.run().reason == "interrupted" and last.run_id != record.run_id

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
    assert served.post(Authorization="Bearer wrong").status_code == 401
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
