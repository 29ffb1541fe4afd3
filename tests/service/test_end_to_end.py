"""The command line as a user has it: real processes, real ranks, a model that is a local server or a recording."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runs.record import Record

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = ["--platform", "cpu", "--world-size", "2", "--case", "tiny"]
RIGHT = "import torch.distributed as dist\ndef solution(x):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y\n"
HANG = "import time\ndef solution(x):\n    time.sleep(1000)\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Without any provider's key, so that nothing here could reach one."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "service.cli", *map(str, arguments)]


def ringsmith(*arguments: object, environment: dict[str, str], timeout: float = 90, **options):
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=timeout, env=environment, **options
    )


class Provider(ThreadingHTTPServer):
    """Speaks the OpenAI chat format; replies with the next turn of its script."""

    daemon_threads = True

    def __init__(self, script: list[list[tuple[str, str]]]) -> None:
        super().__init__(("127.0.0.1", 0), ProviderHandler)
        self.script, self.asked = script, []


class ProviderHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        calls = self.server.script[len(self.server.asked)]
        self.server.asked.append(asked)
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"call_{len(self.server.asked)}_{i}",
                    "type": "function",
                    "function": {"name": n, "arguments": a},
                }
                for i, (n, a) in enumerate(calls)
            ],
        }
        body = json.dumps(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": asked["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_provider_drives_the_tools_to_a_graded_candidate(environment, tmp_path):
    wrong = RIGHT.replace("    dist.all_reduce(y)\n", "")
    script = [
        [("write_candidate", '{"source": ')],  # malformed JSON
        [("no_such_tool", "{}"), ("run_benchmark", '{"case": "huge"}')],
        [("write_candidate", json.dumps({"source": wrong})), ("run_benchmark", "{}"), ("inspect_failure", "{}")],
        [("write_candidate", json.dumps({"source": RIGHT})), ("compile", "{}"), ("run_benchmark", "{}")],
        [("submit", "{}")],
    ]
    server = Provider(script)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        environment |= {
            "OPENAI_API_KEY": "sk-sekrit-123",
            "OPENAI_API_BASE": f"http://127.0.0.1:{server.server_port}/v1",
        }
        done = ringsmith(
            "run",
            1,
            *TINY,
            "--model",
            "litellm:openai/test-model",
            "--runs-dir",
            tmp_path,
            "--json",
            environment=environment,
        )
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["reason"] == "submitted" and run["official"]["verdict"] == "passed"
    assert [a["verdict"] for a in run["attempts"] if a["verdict"]] == ["wrong_values", "passed"]
    assert run["spend"]["tokens"] == 5 * 110
    answers = [m["content"] for asked in server.asked for m in asked["messages"] if m["role"] == "tool"]
    text = "\n".join(map(str, answers))
    for said in ("not valid JSON", "no tool 'no_such_tool'", "no candidate yet", "WRONG_VALUES", "PASSED"):
        assert said in text
    assert "sekrit" not in done.stdout + done.stderr
    for file in Path(run["path"]).rglob("*"):
        assert file.is_dir() or b"sekrit" not in file.read_bytes()


def test_the_packaged_recording_still_leads_to_a_correct_candidate(environment, tmp_path):
    done = ringsmith("run", 1, *TINY, "--runs-dir", tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    assert "replaying the recorded run" in done.stderr
    for verdict in ("COMPILE_ERROR", "wrong_values", "passed"):
        assert verdict in done.stderr
    assert "official evaluation" in done.stdout and "PASSED" in done.stdout


def test_the_packaged_recording_agrees_step_by_step(environment, tmp_path):
    """Every tool, the compiler, wrong values and timing, held against the record: a regression test of the harness."""
    recording = ROOT / "runs" / "examples" / "p01-cpu"
    where = ["--platform", "cpu", "--world-size", "2", "--runs-dir", tmp_path]
    model = f"replay:{recording}?strict"
    done = ringsmith("run", 1, *where, "--model", model, environment=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "finished: submitted" in done.stderr and "PASSED" in done.stdout

    altered = tmp_path / "altered"
    shutil.copytree(recording, altered)
    events = altered / "events.jsonl"
    events.write_text(events.read_text().replace('"verdict": "compile_error"', '"verdict": "api_error"', 1))
    done = ringsmith("run", 1, *where, "--model", f"replay:{altered}?strict", environment=environment)
    assert done.returncode == 3
    said = "the replay differs at step 1, call 2 (compile): verdict of the build is compile_error, recorded api_error"
    assert said in done.stderr and said in done.stdout


def replay_of(tmp_path: Path, source: str) -> str:
    """A recording of a model that writes a candidate and runs it."""
    calls = [{"name": "write_candidate", "arguments": {"source": source}}, {"name": "run_benchmark", "arguments": {}}]
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps({"text": "go", "tool_calls": calls}) + "\n")
    return f"replay:{path}"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_run_ended_from_outside_keeps_its_record_and_leaves_no_process(sent, environment, tmp_path):
    model = replay_of(tmp_path, HANG)
    arguments = command("run", 1, *TINY, "--model", model, "--runs-dir", tmp_path / "runs")
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whoever runs the tests may have it ignored
    ) as run:  # fmt: skip
        for line in run.stderr:
            if "write_candidate" in line:
                break
        time.sleep(0.7)  # into the hanging call
        scratch = list(Path("/dev/shm").glob(f"ringsmith-{run.pid}-*"))
        assert scratch
        servers = _children(run.pid)
        assert servers
        run.send_signal(sent)
        out, err = run.communicate(timeout=30)
    assert run.returncode == (130 if sent is signal.SIGINT else -signal.SIGKILL), err
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in servers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in servers)
    (folder,) = (tmp_path / "runs").iterdir()
    kinds = [event.kind for event in Record.open(folder).events()]
    assert kinds[:3] == ["run_started", "model_replied", "tool_returned"]
    shown = json.loads(ringsmith("runs", "show", folder, "--json", environment=environment).stdout)
    if sent is signal.SIGINT:
        assert shown["reason"] == "interrupted" and str(folder) in out and not scratch[0].exists()
    else:
        assert shown["status"] == "interrupted"


def test_a_killed_run_goes_on_to_its_end(environment, tmp_path):
    arguments = command("run", 1, *TINY, "--runs-dir", tmp_path)
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        for line in run.stderr:
            if line.startswith("step 4"):
                break
        run.kill()
    (folder,) = tmp_path.iterdir()
    before = list(Record.open(folder).events())
    assert before[-1].kind != "run_finished"

    done = ringsmith("run", "--resume", "latest", "--runs-dir", tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    assert "resumed" in done.stderr and "official evaluation" in done.stdout and "PASSED" in done.stdout
    after = list(Record.open(folder).events())
    assert after[: len(before)] == before and after[len(before)].kind == "run_resumed"
    steps = [event.step for event in after if event.kind == "model_replied"]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 4
    calls = [(e.step, e.call.id) for e in after if e.kind == "tool_returned"]
    assert len(set(calls)) == len(calls)

    # The model is told of an attempt by the number that its tools gave it.
    (advice,) = (event.text for event in after if event.kind == "user_message" and event.topic == "fast")
    number = re.search(r"correct: attempt (\d+)", advice)[1]
    written = [e for e in after if e.kind == "tool_returned" and e.call.name in ("write_candidate", "edit_candidate")]
    assert any(e.text.startswith(f"attempt {number}:") and e.candidate == _first_passed(after) for e in written)

    again = ringsmith("run", "--resume", folder, "--runs-dir", tmp_path, environment=environment)
    assert again.returncode == 2 and "has ended (submitted)" in again.stderr
    other = ringsmith("run", 1, "--resume", folder, "--steps", 5, environment=environment)
    assert other.returncode == 2 and "leave out problem, steps" in other.stderr


def _first_passed(events: list) -> str:
    evaluated = (e.evaluation for e in events if e.kind == "tool_returned" and e.evaluation)
    return next(evaluation.candidate for evaluation in evaluated if evaluation.passed)


def _children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_eval_prints_one_evaluation_a_line_and_says_the_worst(environment, tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "empty.py").write_text("")
    files = [tmp_path / "right.py", tmp_path / "empty.py", "reference"]
    done = ringsmith("eval", *files, "--problem", "allreduce", *TINY, "--no-timing", "--json", environment=environment)
    assert done.returncode == 1, done.stderr
    assert [json.loads(line)["verdict"] for line in done.stdout.splitlines()] == ["passed", "api_error", "passed"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--problem", 33, "--case", "pkb", "--world-size", 3], "does not divide evenly"),
        (["--problem", 1, "--world-size", 2, "--platform", "cuda"], "GPUs"),
        (["--problem", 1, "--case", "pkb", "--world-size", 40], "at most"),
    ],
)
def test_a_request_that_cannot_be_is_one_line_and_exit_2(arguments, said, environment, tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    platform = [] if "--platform" in arguments else ["--platform", "cpu"]
    done = ringsmith("eval", tmp_path / "right.py", *platform, *arguments, environment=environment)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and said in last
    assert "Traceback" not in done.stderr


def test_a_missing_compiler_is_ours_and_not_the_candidates(environment, tmp_path):
    source = (ROOT / "prompts" / "examples" / "cpp" / "p01_allreduce_shm.py").read_text()
    (tmp_path / "kit.py").write_text(source + "\n# never built before\n")
    environment |= {"PATH": str(tmp_path), "RINGSMITH_CACHE": str(tmp_path / "cache")}
    done = ringsmith("eval", tmp_path / "kit.py", "--problem", 1, *TINY, environment=environment)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "no C++ compiler" in done.stderr
