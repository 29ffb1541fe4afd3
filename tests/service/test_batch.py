"""`ringsmith eval --batch`: a folder there and back."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.allowance import Allowance
from harness.errors import BudgetEndedError
from harness.remote.batch import Answer
from harness.remote.messages import Fault, Reply, identity
from harness.sandboxes import open_sandbox
from harness.types import Candidate, Limits, Request
from tests.nodes import HANG, PROBLEM, RIGHT, ROOT, WRONG, until
from tests.processes import descendants

TINY = {"problem": "allreduce", "case": "tiny", "platform": "cpu", "world_size": 2, "trials": 1, "timing": False}


def batch(folder: Path, *flags: object):
    command = [sys.executable, "-m", "service.cli", "eval", "--batch", str(folder), *map(str, flags)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def write(folder: Path, *items: dict) -> None:
    (folder / "manifest.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))


def answers(folder: Path) -> dict[str, Answer]:
    found = [Answer.model_validate_json(path.read_text()) for path in (folder / "results").glob("*.json")
             if not path.name.endswith(".trace.json")]  # fmt: skip
    return {answer.id: answer for answer in found}


def test_there_and_back_and_nothing_twice(tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    items = [
        {"id": "a", "file": "right.py", **TINY},
        {"id": "b", "file": "wrong.py", **TINY},
        {"id": "c", "file": "right.py", "do": "compile", "platform": "cpu"},
        {"id": "d", "file": "right.py", "do": "profile", **TINY},
        {"id": "e", "file": "../outside.py", **TINY},
        {"id": "f", "file": "reference", **TINY, "world_size": 3},
        {"id": "g", "file": "right.py", **TINY, "suite": "suite"},
        {"id": "h", "file": "right.py", **TINY, "isolation": "strict"},
        {"id": "i", "file": "right.py", **TINY, "identity": {"protocol": 1, "harness": "0", "code": "0"}},
    ]
    write(tmp_path, *items)
    done = batch(tmp_path)
    found = answers(tmp_path)
    assert done.returncode == 2 and found.keys() == {item["id"] for item in items}, done.stderr
    assert found["a"].reply.evaluation.passed and found["a"].text.startswith("PASSED")
    assert found["b"].text.startswith("WRONG_VALUES") and found["c"].text.startswith("compiled in")
    assert json.loads((tmp_path / "results" / found["d"].reply.profile.trace).read_text())["traceEvents"]
    assert "traced calls" in found["d"].text
    assert found["f"].reply.evaluation.world_size == 3 and found["f"].reply.evaluation.passed
    said = {name: found[name].reply.fault.message for name in "eghi"}
    assert "is not in" in said["e"] and "--accept-suites" in said["g"]
    assert "not strict" in said["h"] and "not be comparable" in said["i"]

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()}
    fault = Answer(id="a", text="", reply=Reply(fault=Fault(kind="harness", message="the disk")), identity=identity())
    (tmp_path / "results" / "a.json").write_text(fault.model_dump_json() + "\n")
    again = batch(tmp_path, "--json")
    assert again.returncode == 0
    assert [json.loads(line)["id"] for line in again.stdout.splitlines()] == ["a"]  # what the harness failed at
    assert answers(tmp_path)["a"].reply.evaluation.passed
    changed = {path.name for path in before if path.stat().st_mtime_ns != before[path]}
    assert changed == {"a.json"} and not list(tmp_path.rglob("*.part"))


def test_a_manifest_that_is_wrong_is_refused_before_anything_is_done(tmp_path):
    write(tmp_path, {"id": "../x", **TINY}, {"id": "a", "typo": 1}, {"id": "b", "do": "explode"},
          {"id": "c", "file": "x"}, {"id": "c", "file": "y"})  # fmt: skip
    done = batch(tmp_path)
    assert done.returncode == 2 and not (tmp_path / "results").exists()
    for said in ("manifest.jsonl:1: id", "manifest.jsonl:2: typo", "manifest.jsonl:3: do", "c is taken"):
        assert said in done.stderr


def test_links_lead_nowhere(tmp_path):
    folder, elsewhere = tmp_path / "batch", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine")
    write(folder, {"id": "a", "file": "link.py", **TINY})
    for name, target in (("results", elsewhere), (".lock", elsewhere / "file"), ("link.py", elsewhere / "file")):
        (folder / name).symlink_to(target)
        done = batch(folder)
        assert done.returncode == 2, done.stdout
        (folder / name).unlink()
    assert "is not in" in answers(folder)["a"].text
    assert [path.name for path in elsewhere.iterdir()] == ["file"] and (elsewhere / "file").read_text() == "mine"


def test_one_process_at_a_time(tmp_path):
    write(tmp_path)
    command = [sys.executable, "-m", "service.cli", "eval", "--batch", str(tmp_path), "--follow"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as first:
        while not (tmp_path / ".lock").exists():
            assert first.poll() is None
        for _ in range(100):  # the file is there a moment before the lock
            if (second := batch(tmp_path)).returncode:
                break
        first.terminate()
    assert second.returncode == 2 and "another process is at work" in second.stderr


def test_a_candidate_that_is_still_being_copied_is_waited_for(tmp_path):
    """The item names the hash: a text of another one is not evaluated."""
    write(tmp_path, {"id": "a", "file": "x.py", "candidate": "0" * 16, "backend": "cpp", **TINY})
    (tmp_path / "x.py").write_text(RIGHT[:30])
    done = batch(tmp_path)
    assert done.returncode == 2 and "not (yet) the candidate" in done.stdout


def asking(folder: Path, *flags: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "service.cli", "eval", *map(str, flags), "--platform", "cpu", "--no-timing",
               "--sandbox", f"batch:{folder}"]  # fmt: skip
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_ctrl_c_takes_back_what_was_asked(tmp_path):
    with asking(tmp_path, "reference", "--problem", 1) as client:
        until(lambda: list(tmp_path.glob("*.jsonl")) != [])
        client.send_signal(signal.SIGINT)
        assert client.wait(30) == 130
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_limit_takes_back_what_is_being_done(tmp_path):
    limits = Limits(load_s=600, first_call_s=600, call_s=600)
    asked = {"problem": 1, "case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "limits": limits}
    hanging, right = (
        Request(candidate=Candidate(source=source, backend="cpp"), timing=False, trials=1, **asked)
        for source in (HANG, RIGHT)
    )
    command = [sys.executable, "-m", "service.cli", "eval", "--batch", str(tmp_path), "--follow"]
    with (
        open_sandbox(f"batch:{tmp_path}", "cpu", 2, limits) as box,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as worker,
    ):
        box.environment()
        candidates = Allowance(lambda: "wall_s" if len(descendants(worker.pid)) >= 6 else None)
        with pytest.raises(BudgetEndedError, match="wall_s"):
            box.evaluate(hanging, allowance=candidates)
        assert worker.stderr.readline().endswith("taken back\n")
        allowance = Allowance()
        evaluation = box.evaluate(right, allowance=allowance)
        worker.terminate()
    assert evaluation.passed and allowance.device_s == pytest.approx(evaluation.device_s, abs=0.5)
    asked_for = {path.stem for path in tmp_path.glob("*.jsonl")}
    assert asked_for == answers(tmp_path).keys() and len(asked_for) == 2


def test_problem_files_lie_in_the_folder_too(tmp_path):
    suite, candidate, folder = tmp_path / "twice.py", tmp_path / "x.py", tmp_path / "batch"
    folder.mkdir()
    suite.write_text(PROBLEM)
    candidate.write_text(RIGHT.replace("return y", "return 2 * y"))
    with asking(folder, candidate, "--problem", "twice", "--suite", suite, "--json") as client:
        until(lambda: list(folder.glob("*.jsonl")) != [])
        assert batch(folder, "--accept-suites").returncode == 0
        said, _ = client.communicate()
    evaluation = json.loads(said)
    assert client.returncode == 0
    assert (evaluation["verdict"], evaluation["name"], evaluation["suite"]) == ("passed", "twice", str(suite))
