"""`ringsmith mcp` over stdin and stdout: real processes, real ranks, the official client."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from harness import proc
from runs.record import Record
from service import cli
from service.commands import mcp as mcp_command
from tests.service.test_end_to_end import RIGHT, ROOT, TINY, command
from tests.service.test_enter import WRONG, until

START = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}}


@pytest.fixture
def environment() -> dict[str, str]:
    """Without any provider's key, so that nothing here could reach one."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


def line(method, number=None, **params):
    return (
        json.dumps({"jsonrpc": "2.0", "method": method, **({"id": number} if number else {}), "params": params}) + "\n"
    )


def begun(environment, *arguments):
    """As clients start it: a process group of its own."""
    return subprocess.Popen(
        command("mcp", *arguments), cwd=ROOT, env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(record):
    return record.finished() is not None and not record.is_being_written()


def test_a_whole_run_by_the_official_client(environment, tmp_path):
    """A wrong candidate, whose verdict the client does not wait for; its failure; the right one; the end."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=[*command("mcp", "--problem", 1, *TINY, "--steps", 9, "--runs-dir", tmp_path)][1:],
        cwd=ROOT,
        env=environment,
    )

    async def act(errors):
        async with Client(stdio_client(parameters, errlog=errors), mode="legacy") as agent:

            async def call(name, **arguments):
                result = await agent.call_tool(name, arguments)
                return result.is_error, result.content[0].text

            assert "Call the tool `task` first" in agent.instructions
            refused, told = await call("task")
            assert not refused and "Write `solution`" in told and "Contract" in told and "9 of 9 tool calls" in told
            assert "At most 9 tool calls." in told and "replies" not in told
            assert (await call("run_benchmark"))[0]
            assert not (await call("write_candidate", source=WRONG))[0]
            with pytest.raises(MCPError, match="timed out"):
                await agent.call_tool("run_benchmark", {}, read_timeout_seconds=0.01)
            refused, told = await call("inspect_failure")
            assert not refused and "run_benchmark returned, for which you stopped waiting" in told
            assert "WRONG_VALUES" in told and "is missing" in told
            await call("write_candidate", source=RIGHT)
            assert "PASSED" in (await call("run_benchmark", timing=False))[1]
            refused, told = await call("submit")
            assert not refused and "ended (submitted)" in told and "passed; eager" in told
            assert (await call("read", what="candidate"))[0]

    with (tmp_path / "errors").open("w+") as errors:
        asyncio.run(act(errors))
        errors.seek(0)
        said = errors.read()
    record = Record.list(tmp_path)[0]
    until(lambda: ended(record))
    run = record.run()
    assert (run.reason, run.config.model, run.spend.steps, run.target_met) == ("submitted", "external:mcp", 7, True)
    assert "step 3/9: (calls run_benchmark)" in said and "PASSED" in said and str(record.path) in said


def test_a_client_that_leaves_and_kills_still_has_its_run_graded(environment, tmp_path):
    server = begun(environment, "--problem", 1, *TINY, "--runs-dir", tmp_path)
    with server:
        server.stdin.write(line("initialize", 1, **START))
        server.stdin.write(line("notifications/initialized"))
        server.stdin.write("this is no JSON\n")
        server.stdin.write(line("tools/call", 2, name="write_candidate", arguments={"source": RIGHT}))
        server.stdin.flush()
        answers = {}
        while 2 not in answers:
            answer = json.loads(server.stdout.readline())  # and nothing else is written there
            answers[answer.get("id")] = answer
        assert answers[1]["result"]["serverInfo"]["name"] == "ringsmith"
        (ours,) = proc.children(server.pid)
        # In the middle of a call, and with nobody left who reads what is said on the way.
        server.stdin.write(line("tools/call", 3, name="run_benchmark", arguments={"timing": False}))
        server.stdin.flush()
        record = Record.list(tmp_path)[0]
        until(lambda: record.run().spend.steps == 2)
        server.stdout.close()
        server.stdin.write(line("ping", 4))
        server.stdin.flush()
        time.sleep(0.2)  # for the answer to find nobody
        for pipe in (server.stdin, server.stderr):
            pipe.close()
        os.killpg(server.pid, signal.SIGKILL)
    until(lambda: ended(record))
    run = record.run()
    assert run.reason == "model_stopped" and run.official is not None
    assert run.official.passed, run.official.summary
    assert run.config.model == "external:bare"
    until(lambda: ours not in proc.parents())


def test_a_signal_ends_it_and_leaves_nothing(environment, tmp_path):
    server = begun(environment, "--problem", 1, *TINY, "--runs-dir", tmp_path, "--agent", "me")
    with server:
        server.stdin.write(line("initialize", 1, **START))
        server.stdin.write(line("notifications/initialized"))
        server.stdin.write(line("tools/call", 2, name="write_candidate", arguments={"source": RIGHT}))
        server.stdin.flush()
        while json.loads(server.stdout.readline()).get("id") != 2:
            pass
        below = proc.descendants([server.pid])
        assert len(below) > 3
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=60)
    assert server.returncode == 1 and "no official evaluation" in said
    assert Record.list(tmp_path)[0].run().config.model == "external:me"
    assert not below & set(proc.parents())


def test_a_client_that_only_looks_begins_no_run(environment, tmp_path):
    started = time.monotonic()
    done = subprocess.run(
        command("mcp", "--problem", "gemm_allreduce", *TINY[:4], "--runs-dir", tmp_path), cwd=ROOT, env=environment,
        input=line("initialize", 1, **START), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), time.monotonic() - started
    assert json.loads(done.stdout)["result"]["instructions"] and not Record.list(tmp_path)


@pytest.fixture
def said(capsys):
    def call(*arguments):
        code = cli.main(["mcp", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err

    return call


def test_what_cannot_be_is_said_in_one_line(said, events, tmp_path, monkeypatch):
    with Record.create(tmp_path, "r") as record:
        for event in events[:3]:
            record.append(event)
    at = ["--runs-dir", tmp_path]
    for arguments, text in (
        ((), "say which problem"),
        (("--problem", "nope"), "nope"),
        (("--problem", 1, *TINY, "--port", 1), "port: only with --http"),
        (("--resume", "r", *at), "led by replay:somewhere: `ringsmith run --resume`"),
        (("--resume", "r", "--steps", 3, *at), "leave out steps"),
        (("--resume", "none", *at), "no run 'none'"),
        (("--problem", 1, *TINY, "--http", "--host", "0.0.0.0"), "RINGSMITH_MCP_TOKEN"),
    ):
        code, err = said(*arguments)
        assert code == 2 and text in err and err.count("\n") == 1, err
    monkeypatch.setenv("RINGSMITH_MCP_TOKEN", "easily-guessed")
    code, err = said("--problem", 1, *TINY, "--http", "--host", "0.0.0.0")
    assert code == 2 and "RINGSMITH_MCP_TOKEN must be one word of at least 20 ASCII characters" in err
    monkeypatch.setattr(mcp_command, "find_spec", lambda name: None)
    code, err = said("--problem", 1)
    assert code == 2 and "pip install 'ringsmith[mcp]'" in err
