"""A whole run whose candidates are evaluated elsewhere leaves the record of one here, besides figures."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.remote.client import facts
from harness.sandboxes import Access
from runs.record import Record
from tests.nodes import RIGHT, ROOT, WRONG, Proxy, node

BROKEN = "from harness import kit\nLIB = kit.build('extern \"C\" void f( {')\ndef solution(x):\n    return x\n"
SCRIPT = [
    [("run_benchmark", {})],  # there is none yet
    [("write_candidate", {"source": BROKEN}), ("compile", {}), ("inspect_failure", {})],
    [("write_candidate", {"source": WRONG}), ("compile", {}), ("run_benchmark", {}), ("inspect_failure", {})],
    [("run_benchmark", {"case": "huge"})],
    [("write_candidate", {"source": RIGHT}), ("profile", {}), ("run_benchmark", {})],
    [("submit", {})],
]


SHORT = [[("write_candidate", {"source": RIGHT})], [("run_benchmark", {"timing": False})], [("submit", {})]]


def replay(folder: Path, turns: list) -> str:
    """A model that makes these calls, turn by turn."""
    said = [{"tool_calls": [{"name": name, "arguments": given} for name, given in turn]} for turn in turns]
    path = folder / "turns.jsonl"
    path.write_text("\n".join(map(json.dumps, said)))
    return f"replay:{path}"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "service.cli", *map(str, arguments)]


def ringsmith(*arguments: object) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return subprocess.run(
        command(*arguments, "--json"), cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment
    )


def run(model: str, folder: Path, *flags: object) -> Record:
    done = ringsmith("run", 1, "--platform", "cpu", "--world-size", 2, "--case", "tiny", "--strategy", "loop",
                     "--model", model, "--runs-dir", folder, *flags)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Record.open(Path(json.loads(done.stdout)["path"]))


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    return without_figures(run(replay(folder, SCRIPT), folder / "runs"))


FIGURES = {
    "at",
    "seconds",
    "device_s",
    "waited_s",
    "stage_s",
    "wall_s",
    "measurement",
    "build_s",
    "run_id",
    "model",
    "sandbox",
}
RANDOM = {"ranks", "findings"}
"""Which elements, and by how much, hangs on secret seeds."""


def without_figures(record: Record) -> list:
    """All events, numbers in texts left out, and of profiles that there was one."""

    def plain(value, key=""):
        if key in FIGURES | RANDOM:
            return None
        if key == "profile":
            return {"ranks": len(value["ranks"]), "trace": (record.path / value["trace"]).is_file()}
        if isinstance(value, dict):
            return {name: plain(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return re.sub(r"[\d.e+-]*\d", "#", value) if isinstance(value, str) else value

    events = [event.model_dump(mode="json") for event in record.events()]
    for event in events:
        if event["kind"] == "tool_returned" and event["call"]["name"] in (
            "profile",
            "run_benchmark",
            "inspect_failure",
        ):
            event["text"] = (
                event["text"].split(":")[0].split("\n")[0]
            )  # the rest are figures, and hints that hang on them
    return [plain(event) for event in events]


def test_through_a_node_over_a_bad_connection(here, tmp_path):
    with node() as served:
        proxy, over = Proxy(served.port), threading.Event()

        def cut() -> None:
            while not over.wait(0.5):
                proxy.cut()

        threading.Thread(target=cut).start()
        try:
            record = run(replay(tmp_path, SCRIPT), tmp_path / "runs", "--sandbox", proxy.url)
        finally:
            over.set()
            proxy.close()
        assert proxy.cuts > 10
    assert without_figures(record) == here
    assert record.run().config.sandbox == proxy.url


def test_through_a_folder(here, tmp_path):
    folder = tmp_path / "batch"
    folder.mkdir()
    with subprocess.Popen(
        command("eval", "--batch", folder, "--follow"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as worker:
        record = run(replay(tmp_path, SCRIPT), tmp_path / "runs", "--sandbox", f"batch:{folder}")
        worker.terminate()
        said = worker.stderr.read()
    assert without_figures(record) == here
    assert worker.returncode == 130 and said == b"interrupted\n"
    answers = [json.loads(path.read_text()) for path in (folder / "results").glob("evaluate-*.json")]
    texts = [answer["text"] for answer in answers if answer["reply"]["evaluation"]]
    assert any(text.startswith("PASSED") for text in texts) and any(text.startswith("WRONG_VALUES") for text in texts)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The record of a sweep of one run, on a node that is gone."""
    folder = tmp_path_factory.mktemp("swept")
    with node() as served:
        done = ringsmith("sweep", "--name", "s", "--problems", 1, "--case", "tiny", "--models", replay(folder, SHORT),
                         "--no-timing", "--strategy", "loop", "--sandbox", served.url,
                         "--runs-dir", folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["solved"] == 1
    path = Path(json.loads(done.stdout)["path"])
    (record,) = (Record.open(run) for run in (path / "runs").iterdir())
    config = record.started().config
    assert (config.sandbox, config.platform) == (served.url, "cpu")
    return path, record


@pytest.fixture(scope="module")
def another():
    with node() as served:
        yield served


def test_regrade_at_another_place(swept, another):
    before = facts(another.url, Access()).jobs_begun
    done = ringsmith("regrade", swept[0], "--sandbox", another.url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["after"]["verdict"] == "passed"
    assert facts(another.url, Access()).jobs_begun == before + 1


def test_a_run_goes_on_at_another_place(swept, another, tmp_path):
    """The record says where; a run whose node is gone is resumed on another one."""
    path = tmp_path / swept[1].run_id
    shutil.copytree(swept[1].path, path)
    lines = (path / "events.jsonl").read_text().splitlines(keepends=True)
    cut = next(at for at, line in enumerate(lines) if '"run_benchmark"' in line and "tool_returned" in line)
    (path / "events.jsonl").write_text("".join(lines[:cut]))
    gone = ringsmith("run", "--resume", path)
    assert gone.returncode == 3 and "cannot reach the node" in gone.stderr
    done = ringsmith("run", "--resume", path, "--sandbox", another.url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["official"]["verdict"] == "passed"
