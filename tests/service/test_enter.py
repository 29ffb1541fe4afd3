"""A person at the command line, and an agent from outside: real processes, real ranks."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.errors import UsageError
from runs import control
from runs.control import Request
from runs.events import AgentCalled, Budget, PersonActed, RunConfig
from runs.record import Record
from service import cli, run
from tests.service.test_end_to_end import RIGHT, ROOT, TINY, Provider, command

WRONG = RIGHT.replace("    dist.all_reduce(y)\n", "")


@pytest.fixture
def environment() -> dict[str, str]:
    """Without any provider's key, so that nothing here could reach one."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


@pytest.fixture
def ringsmith(capsys):
    def call(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def until(condition, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Slow(Provider):
    """Thinks until it is told to go on, once for each request."""

    def __init__(self, script):
        super().__init__(script)
        self.waiting, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def finish_request(self, request, client_address):
        self.waiting.release()
        assert self.go_on.acquire(timeout=180)
        super().finish_request(request, client_address)


def test_a_live_run_is_paused_edited_and_cancelled_from_another_process(environment, ringsmith, tmp_path):
    script = [
        [("write_candidate", json.dumps({"source": WRONG})), ("run_benchmark", "{}")],
        [("run_benchmark", "{}")],
        [("read", '{"what": "candidate"}')],
    ]
    server = Slow(script)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    environment |= {"OPENAI_API_KEY": "sk-x", "OPENAI_API_BASE": f"http://127.0.0.1:{server.server_port}/v1"}
    arguments = command("run", 1, *TINY, "--model", "litellm:openai/m", "--strategy", "loop", "--runs-dir", tmp_path)
    at = ["--runs-dir", tmp_path]
    file = tmp_path / "mine.py"
    file.write_text(RIGHT)
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert server.waiting.acquire(timeout=180)
            code, out, _ = ringsmith("runs", "pause", "latest", *at)
            assert code == 0 and "pause is taken before the next step" in out
            assert "not taken yet: pause" in ringsmith("runs", "show", "latest", *at)[1]
            server.go_on.release()
            until(lambda: Record.list(tmp_path)[0].run().status == "paused")
            assert json.loads(ringsmith("runs", "list", *at, "--json")[1])["status"] == "paused"
            assert "paused" in ringsmith("runs", "show", "latest", *at)[1]
            assert ringsmith("runs", "candidate", "latest", file, *at)[0] == 0
            code, out, _ = ringsmith("runs", "hint", "latest", "use my text", *at, "--json")
            assert code == 0 and json.loads(out)["action"] == "hint"
            assert ringsmith("runs", "resume", "latest", *at)[0] == 0
            assert server.waiting.acquire(timeout=180)
            server.go_on.release()
            # The run has measured what the person wrote, and asks for its third step.
            assert server.waiting.acquire(timeout=180)
            assert ringsmith("runs", "cancel", "latest", *at)[0] == 0
            server.go_on.release()
            out, err = process.communicate(timeout=180)
        finally:
            process.kill()
            server.go_on.release(9)
            server.shutdown()
            server.server_close()
    assert process.returncode == 0, err
    assert "person: pause" in err and "person: hint: use my text" in err and "finished: cancelled" in err
    assert "PASSED" in out and "not the model's work alone" in out
    record = Record.list(tmp_path)[0]
    assert [e.action for e in record.events() if isinstance(e, PersonActed)] == [
        "pause", "candidate", "hint", "resume", "cancel",
    ]  # fmt: skip
    done = record.run()
    assert done.best and record.candidate(done.best.candidate).source == RIGHT
    said = [m["content"] for m in server.asked[1]["messages"] if m["role"] == "user"]
    assert any("use my text" in str(text) for text in said) and any("all_reduce" in str(text) for text in said)
    told = ringsmith("runs", "show", "latest", *at, "--transcript")[1]
    assert "[person: hint: use my text]" in told and "[person: pause]" in told
    for action in ("pause", "resume", "cancel"):
        code, out, err = ringsmith("runs", action, "latest", *at)
        assert (code, out) == (2, "") and "has ended (cancelled)" in err
    assert ringsmith("runs", "hint", "latest", "late", *at)[0] == 2


def test_for_an_interrupted_run_hints_and_candidates_may_be_left(ringsmith, events, tmp_path):
    with Record.create(tmp_path, "r") as record:
        for event in events[:3]:
            record.append(event)
    (tmp_path / "c.py").write_text(RIGHT)
    (tmp_path / "bad.py").write_bytes(b"\xff")
    (tmp_path / "empty.py").write_text(" \n")
    at = ["--runs-dir", tmp_path]
    code, out, _ = ringsmith("runs", "hint", "r", "think", *at)
    assert code == 0 and "once the run is resumed" in out
    assert ringsmith("runs", "candidate", "r", tmp_path / "c.py", *at)[0] == 0
    assert [asked.action for asked in control.pending(record.path)] == ["hint", "candidate"]
    for arguments, said in (
        (("pause", "r"), "run --resume r"),
        (("resume", "r"), "run --resume r"),
        (("cancel", "r"), "nothing to cancel"),
        (("hint", "r", "  "), "a hint without a text"),
        (("candidate", "r", tmp_path / "none.py"), "cannot read"),
        (("candidate", "r", tmp_path / "bad.py"), "not UTF-8"),
        (("candidate", "r", tmp_path / "empty.py"), "without a text"),
        (("hint", "nope", "x"), "no run 'nope'"),
    ):
        code, out, err = ringsmith("runs", *arguments, *at)
        assert (code, out) == (2, "") and said in err, arguments


def external(**changes):
    fields = {
        "problem": 1, "case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "backend": "cpp",
        "model": "external:tester",
    }  # fmt: skip
    return RunConfig(**{**fields, **changes})


def in_thread(work):
    """As a server calls: each time from a thread that ends afterwards."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


def test_an_agent_from_outside_has_the_same_tools_record_and_grade(tmp_path):
    seen = []
    with run.open_external(external(budget=Budget(steps=9)), root=tmp_path, on_event=seen.append) as agent:
        assert "run_benchmark" in {schema["name"] for schema in agent.schemas()}
        assert "def reference" in agent.messages[-1].text and "9" in agent.messages[-1].text
        assert "attempt 1" in in_thread(lambda: agent.call("write_candidate", {"source": WRONG})).text
        (folder,) = tmp_path.iterdir()
        control.send(folder, Request(action="hint", text="add the ranks"))
        wrong = in_thread(lambda: agent.call("run_benchmark", {}))
        assert wrong.ok and "WRONG_VALUES" in wrong.text and "add the ranks" in wrong.text
        assert not in_thread(lambda: agent.call("submit", {})).ok
        control.send(folder, Request(action="candidate", text=RIGHT))
        passed = in_thread(lambda: agent.call("run_benchmark", {}))
        assert "PASSED" in passed.text and "attempt 2" in passed.text
        submitted = in_thread(lambda: agent.call("submit", {}))
        assert submitted.ended and "Official evaluation" in submitted.text and "passed" in submitted.text
    record = Record.open(folder)
    assert list(record.events()) == seen and not record.is_being_written()
    done = record.run()
    assert (done.reason, done.spend.steps, done.helped) == ("submitted", 5, True)
    assert done.official and done.official.passed and done.spend.device_s > 0
    with pytest.raises(UsageError, match="has ended"), run.reopen_external(record, on_event=seen.append):
        pass


KILLED = """
import os, sys
from pathlib import Path
from runs.events import ToolReturned
from service import run
from tests.service.test_enter import RIGHT, external

def die(event):
    if isinstance(event, ToolReturned) and event.step == 2:
        os._exit(9)

with run.open_external(external(), root=Path(sys.argv[1]), on_event=die) as agent:
    agent.call("write_candidate", {"source": RIGHT})
    agent.call("run_benchmark", {})
"""


def test_a_killed_server_goes_on_with_its_run(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=ROOT, timeout=180, check=False)
    assert done.returncode == 9
    (record,) = Record.list(tmp_path)
    assert record.run().status == "interrupted"
    # It is not a run of the loop.
    with pytest.raises(UsageError, match="cannot be led by the loop"):
        run.resume_one(record, on_event=lambda event: None)
    with run.reopen_external(record, on_event=lambda event: None) as agent:
        answer = agent.call("read", {"what": "candidate"})
        assert "all_reduce" in answer.text and "restarted since your last call, run_benchmark" in answer.text
    assert (agent.ended.reason, agent.ended.official.verdict) == ("model_stopped", "passed")
    assert [e.step for e in record.events() if isinstance(e, AgentCalled)] == [1, 2, 3]


def test_what_an_agent_from_outside_cannot_have_is_refused_before_any_process(tmp_path):
    for config, said in (
        (external(budget=Budget(usd=1.0)), "cannot be limited"),
        (external(model="openai/gpt-5"), "not an agent from outside"),
        (external(strategy="phased"), "strategy"),
    ):
        with (
            pytest.raises(UsageError, match=said),
            run.open_external(config, root=tmp_path / "runs", on_event=lambda event: None),
        ):
            pass
    assert not (tmp_path / "runs").exists()
    assert cli.main(["run", "1", *TINY, "--model", "external:x", "--runs-dir", str(Path(tmp_path))]) == 2
