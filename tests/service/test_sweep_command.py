"""`ringsmith sweep` as a user has it: real processes, real ranks, scripted models."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from runs.sweep_record import SweepRecord
from tests.processes import descendants
from tests.service.scripts import fails, solves, turn, write
from tests.service.test_end_to_end import ROOT, command, ringsmith

CPU = ["--platform", "cpu", "--world-size", 2, "--case", "tiny", "--no-timing"]
TWELVE = (1, 2, 3, 4, 5, 6, 7, 8, 13, 33, 34, 46)


@pytest.fixture
def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


def scripted(folder: Path, problems: tuple[int, ...]) -> str:
    """`good` solves all, at once or after a text that does not compile; of `other`'s samples the first is wrong, the
    second writes nothing, the third is refused by the gate's first look."""
    for problem in problems:
        write(folder / "good", f"p{problem:02d}", solves(problem)[1:])
        write(folder / "good", f"p{problem:02d}.2", solves(problem))
        write(folder / "other", f"p{problem:02d}.1", fails(problem))
        write(folder / "other", f"p{problem:02d}.2", [{"text": "I would rather not."}])
        write(
            folder / "other", f"p{problem:02d}.3", [turn(("write_candidate", {"source": "x = 1\n"}), ("compile", {}))]
        )
    return f"scripted:{folder / 'good'},scripted:{folder / 'other'}"


def alive(pids: list[int]) -> list[str]:
    """Those that run, as `ps` would show them."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                found.append(f"{pid} {state} {Path(f'/proc/{pid}/cmdline').read_text()}")
    return found


def test_a_sweep_from_its_plan_to_its_last_line(environment, tmp_path) -> None:
    models = scripted(tmp_path, (1, 2))
    asked = ["sweep", "--problems", "1,2", "--models", models, "-k", 2, "--name", "small", "--runs-dir", tmp_path / "r"]
    planned = ringsmith(*asked, *CPU, "--dry-run", environment=environment)
    assert planned.returncode == 0 and "2 problems x 2 models x 2 samples = 8 runs" in planned.stdout
    assert "GPU-hours under lease: 0.18 (assumed" in planned.stdout and not (tmp_path / "r").exists()
    nobody = ringsmith(
        "sweep", "--problems", "1", "--models", "foo", "--name", "n", *CPU, "--dry-run", environment=environment
    )
    assert nobody.returncode == 0 and "warning: the sweep would be refused here: 'foo' is not a model" in nobody.stderr

    few = ringsmith(*asked, *CPU, "--strategy", "single", "--dry-run", environment=environment)
    assert "assumed: 2 evaluations of 5 s" in few.stdout  # the only one and the official one

    done = ringsmith(*asked, *CPU, "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["reason"], facts["cells"], facts["solved"], facts["unsolved"]) == ("done", 8, 4, 4)
    assert "p01 scripted:" in done.stderr and "#2: begins as" in done.stderr
    assert done.stderr.count(": submitted; official ") == 4
    assert facts["spend"]["device_s"] > 0

    again = ringsmith(*asked, *CPU, environment=environment)
    assert again.returncode == 0 and "begins" not in again.stderr and "8 of 8 cells ended, 4 solved" in again.stdout
    other = ringsmith(*asked, *CPU, "--trials", 2, environment=environment)
    assert other.returncode == 2 and "trials: 3 -> 2" in other.stderr
    forecast = ringsmith(*asked, *CPU, "--dry-run", "--json", environment=environment)
    expected = json.loads(forecast.stdout)["expected"]
    assert "mean of 8 earlier runs on cpu" in expected["gpu_basis"]
    assert all("earlier runs of this model" in model["basis"] for model in expected["models"])


def test_a_sweep_is_regraded_beside_its_records(environment, tmp_path) -> None:
    models = scripted(tmp_path, (1, 2))
    asked = ["--problems", "1,2", "--models", models, "--name", "s", "--runs-dir", tmp_path / "r"]
    assert ringsmith("sweep", *asked, *CPU, environment=environment).returncode == 0
    found = SweepRecord(tmp_path / "r" / "sweeps" / "s").results()
    before = {cell: (record.path / "events.jsonl").read_bytes() for cell, record in found.items()}

    regrade = ["regrade", "s", "--runs-dir", tmp_path / "r", "--case", "odd"]
    done = ringsmith(*regrade, "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["after"]["verdict"] for line in lines] == ["passed"] * 2  # the other model solved nothing
    assert [line["changes"] for line in lines] == [["case: tiny -> odd"]] * 2
    assert all(Path(line["path"]).parent.name == "regrades" and Path(line["path"]).is_file() for line in lines)
    assert before == {cell: (record.path / "events.jsonl").read_bytes() for cell, record in found.items()}
    again = ringsmith(*regrade, environment=environment)
    assert again.returncode == 0 and again.stdout == "" and again.stderr.count("regraded so before") == 2

    # What has been judged too mildly is found out.
    good = next(record for cell, record in found.items() if cell.model.endswith("good") and cell.problem == 1)
    (candidate,) = (good.path / "candidates").glob("*.py")
    candidate.write_text(candidate.read_text().replace("all_reduce", "broadcast_to_nobody"))
    spoiled = ringsmith("regrade", good.path, environment=environment)
    assert spoiled.returncode == 1 and "verdict: passed -> " in spoiled.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--problems", "1", "--models", "replay:x"], "say --name"),
        (["--name", "s"], "say --problems and --models"),
        (["--name", "s", "--problems", "1", "--models", "nonsense"], "not a model"),
        (["--name", "s", "--problems", "1", "--models", "scripted:/nowhere"], "has none of p01.1.jsonl"),
        (["--name", "s", "--problems", "1", "--models", "replay:/nowhere", "--case", "huge"], "no case 'huge'"),
    ],
)
def test_what_cannot_be_swept_is_one_line(arguments, said, environment, tmp_path) -> None:
    done = ringsmith("sweep", *arguments, "--platform", "cpu", "--runs-dir", tmp_path / "r", environment=environment)
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1], done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_twelve_problems_two_models_three_samples_killed_at_random(environment, tmp_path) -> None:
    """Killed with SIGKILL twice and with SIGINT twice, at times drawn anew in each run of this test."""
    models = scripted(tmp_path, TWELVE)
    asked = [
        "sweep", "--problems", ",".join(map(str, TWELVE)), "--models", models, "-k", 3, "--name", "whole",
        "--runs-dir", tmp_path / "r", "--json", *CPU,
    ]  # fmt: skip
    record, chance = SweepRecord(tmp_path / "r" / "sweeps" / "whole"), random.Random()
    for sent in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGINT):
        with subprocess.Popen(
            command(*asked), cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as sweep:  # fmt: skip
            before = len(record.events())
            while len(record.events()) < before + 10 and sweep.poll() is None:
                time.sleep(0.05)
            time.sleep(chance.uniform(0.0, 6.0))
            processes = descendants(sweep.pid)
            sweep.send_signal(sent)
            sweep.communicate(timeout=60)
        assert sweep.returncode == (130 if sent is signal.SIGINT else -signal.SIGKILL)
        until = time.monotonic() + 20
        while (left := alive(processes)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left

    done = ringsmith(*asked, environment=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["cells"], facts["solved"], facts["unsolved"], facts["failed"]) == (72, 36, 36, 0)
    found = record.results()
    assert len(found) == 72 and len({run.run_id for run in found.values()}) == 72
    for cell, folder in found.items():
        run = folder.run()
        good = cell.model.endswith("good")
        verdicts = [str(attempt.verdict) for attempt in run.attempts if attempt.verdict]
        wanted = ["passed"] if good else {1: run.attempts and verdicts, 2: [], 3: []}[cell.sample]
        assert (run.target_met, run.reason) == (good, "submitted" if good else "model_stopped"), cell
        assert verdicts == wanted and "passed" not in (verdicts if not good else []), cell
        steps = [event.step for event in folder.events() if event.kind == "model_replied"]
        assert steps == list(range(1, len(steps) + 1)), cell  # no reply was asked for twice
        assert len(steps) == ({2: 3}.get(cell.sample, 2) if good else {1: 2, 2: 1, 3: 1}[cell.sample]), cell
