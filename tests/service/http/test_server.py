"""A real server: killed, restarted, ended, followed by clients that come and go."""

import json
import random
import threading
import time

import httpx
import pytest

from runs.events import PersonActed
from runs.record import Record
from service import cli
from service.commands import serve
from tests.nodes import RIGHT, node
from tests.service.jobs.conftest import wait
from tests.service.scripts import turn, write
from tests.service.server import Server

KEY = "sk-a-key-that-nobody-may-see-0123456789"
READS = [turn(("write_candidate", {"source": f"# {n}\n"}), ("read", {"what": "reference"})) for n in range(25)]


class Follower(threading.Thread):
    """Comes back with its Last-Event-ID whenever the connection breaks, which it does itself at random."""

    def __init__(self, server: Server, run_id: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.url, self.got, self.draw = (
            f"{server.api}/runs/{run_id}/stream",
            list[tuple[int, str]](),
            random.Random(seed),
        )
        self.start()

    def run(self) -> None:
        while True:
            headers = {"Last-Event-ID": str(self.got[-1][0])} if self.got else {}
            try:
                with httpx.stream("GET", self.url, headers=headers, timeout=20.0, verify=False) as answer:
                    if answer.status_code == 204 or (answer.status_code == 200 and self._read(answer)):
                        return
            except httpx.TransportError:
                pass
            time.sleep(0.05)

    def _read(self, answer: httpx.Response) -> bool:
        number = 0
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: ") and number:
                self.got.append((number, line[6:]))
                number = 0
                if self.draw.random() < 0.1:
                    return False
            elif line == "event: end":
                return True
        return False


def begin(server: Server, body: dict) -> str:
    answer = server.post("/runs", body)
    assert answer.status_code == 201, answer.text
    run_id = answer.json()["run_id"]
    wait(lambda: server.get(f"/runs/{run_id}").status_code == 200, 60)
    return run_id


@pytest.fixture(scope="module")
def keyed():
    return {"OPENAI_API_KEY": KEY, "RINGSMITH_DEBUG": "1"}


def test_killed_at_random_nothing_is_lost_or_repeated(server, thinks, keyed):
    one = server("--allow-files", "--access-log", environment=keyed)
    body = thinks(READS, 0.1)
    runs = [begin(one, body) for _ in range(3)]
    paused = begin(one, body)
    assert one.post(f"/runs/{paused}/pause").status_code == 200
    wait(lambda: one.get(f"/runs/{paused}").json()["status"] == "paused")
    followers = [Follower(one, run, seed) for seed, run in enumerate([*runs, *runs, paused])]
    draw = random.Random(5)
    for _ in range(2):
        time.sleep(draw.uniform(0.5, 1.5))
        one.kill()
        one.start()
    wait(lambda: one.get(f"/runs/{paused}").json()["status"] == "paused")
    late = one.post("/runs", body, headers={"Idempotency-Key": "late"}).json()
    one.kill()
    one.start()
    assert one.post("/runs", body, headers={"Idempotency-Key": "late"}).json() == late
    followers.append(Follower(one, late["run_id"], 99))
    assert one.post(f"/runs/{paused}/resume").status_code == 200
    for follower in followers:
        follower.join(60)
        assert not follower.is_alive()
    for follower, run in zip(followers, [*runs, *runs, paused, late["run_id"]], strict=True):
        lines = (one.runs / run / "events.jsonl").read_text().splitlines()
        assert follower.got == list(enumerate(lines, start=1))
        kinds = [json.loads(line)["kind"] for line in lines]
        assert kinds.count("model_replied") == len(READS) and kinds[-1] == "run_finished"
    acted = [event.action for event in Record(one.runs / paused).events() if isinstance(event, PersonActed)]
    assert acted[0] == "pause" and acted[-1] == "resume" and set(acted) == {"pause", "resume"}
    assert one.get("/runs").json()["total"] == 5

    # What was said with a key about: in no answer, log or record.
    model = {"problem": 1, "platform": "cpu", "model": f"openai/{KEY}"}
    answers = [
        one.post("/runs", model),
        one.post("/runs", {"problem": 1, "model": "x", KEY: KEY}),
        one.post(f"/runs/{late['run_id']}/hint", {"text": KEY}),
        one.get(f"/runs/{KEY}"),
        one.get("/runs", params={"state": KEY, "limit": KEY}),
        one.post("/runs", {"problem": KEY, "model": "openai/x"}),
        httpx.get(f"{one.url}/metrics", verify=False),
    ]
    assert all(KEY not in answer.text for answer in answers), [a.text for a in answers if KEY in a.text]
    assert one.stop() == 0
    for path in [one.log, *one.runs.rglob("*")]:
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


def test_it_ends_as_it_is_told_and_goes_on(server, thinks):
    one = server("--allow-files")
    run_id = begin(one, thinks(READS, 0.1))
    follower = Follower(one, run_id, 0)
    wait(lambda: len(follower.got) > 3)
    assert one.stop(20.0) == 0
    assert Record(one.runs / run_id).run().reason == "interrupted"
    assert "interrupted" in one.log.read_text() and "Traceback" not in one.log.read_text()
    one.start()
    follower.join(60)
    assert [number for number, _ in follower.got] == list(range(1, len(follower.got) + 1))
    assert Record(one.runs / run_id).run().reason == "model_stopped"


def test_a_slow_client_costs_little(server, thinks):
    """It reads nothing; the others get theirs."""
    one = server("--allow-files")
    large = [turn(("write_candidate", {"source": "#" + "x" * 400_000 + f"{n}\n"})) for n in range(25)]
    run_id = begin(one, thinks(large, 0.02))
    before = one.rss_bytes
    with httpx.Client(timeout=30.0) as http:
        streams = [http.stream("GET", f"{one.api}/runs/{run_id}/stream") for _ in range(10)]
        for stream in streams:
            stream.__enter__()
        follower = Follower(one, run_id, 1)
        follower.join(60)
        assert not follower.is_alive()
        events = len(follower.got)
        size = (one.runs / run_id / "events.jsonl").stat().st_size
        assert size > 20e6 and one.rss_bytes - before < 3 * size
        for stream in streams:
            stream.__exit__(None, None, None)
    assert [number for number, _ in follower.got] == list(range(1, events + 1))


def test_a_candidate_is_evaluated_by_real_ranks(server):
    one = server(module="service.cli")
    body = {"problem": 1, "case": "tiny", "platform": "cpu", "world_size": 2, "trials": 1, "timing": False}
    asked = [one.post("/evaluations", body), one.post("/evaluations", body | {"source": "x = 1\n"})]
    told = [one.get(f"/evaluations/{answer.json()['id']}", params={"wait": 60}).json() for answer in asked]
    assert [answer["evaluation"]["verdict"] for answer in told] == ["passed", "api_error"]


def test_a_server_may_evaluate_on_a_node(server, tmp_path):
    calls = ("write_candidate", {"source": RIGHT}), ("run_benchmark", {}), ("submit", {})
    write(tmp_path / "scripts", "p01", [turn(*calls)])
    where = {"case": "tiny", "platform": "cpu", "world_size": 2, "timing": False}
    model = f"scripted:{tmp_path / 'scripts'}"
    with node() as gpus:
        one = server("--sandbox", gpus.url, "--allow-files", module="service.cli")
        run_id = one.post("/runs", where | {"problem": 1, "model": model}).json()["run_id"]
        record = Record(one.runs / run_id)
        wait(lambda: (record.path / "events.jsonl").exists() and record.finished() is not None, 60)
        assert httpx.get(f"{gpus.url}/v1/node", verify=False).json()["jobs_begun"] > 0
        run = record.run()
        assert run.config.sandbox == gpus.url and run.official is not None and run.official.passed
        elsewhere = {"problems": "1", "models": model, "sandbox": "http://example.org"}
        told = httpx.put(f"{one.api}/sweeps/s", json=where | elsewhere, timeout=60.0, verify=False)
        assert told.status_code == 422 and "serve --sandbox" in told.json()["detail"]


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "fastapi" else object())
    for command in (["serve"], ["serve", "token", "list"]):
        assert cli.main(command) == 2
        error = capsys.readouterr().err
        assert "needs fastapi: pip install 'ringsmith[serve]'" in error and error.count("\n") == 1


def test_tokens_by_command_and_what_needs_them(tmp_path, capsys):
    root = tmp_path / "runs"
    assert cli.main(["serve", "--host", "0.0.0.0", "--port", "0", "--root", str(root)]) == 2
    assert "token create" in capsys.readouterr().err
    short = tmp_path / "short"
    short.write_text("easily-guessed\n")
    assert cli.main(["serve", "--token-file", str(short), "--root", str(root)]) == 2
    assert "at least 20 ASCII characters: `openssl rand -hex 32` makes one" in capsys.readouterr().err
    assert cli.main(["serve", "token", "create", "ci", "--scope", "run", "--root", str(root)]) == 0
    token = capsys.readouterr().out.strip()
    one = Server(root, "--require-token", module="tests.service.fake_server").start()
    try:
        headers = {"Authorization": f"Bearer {token}"}
        assert one.get("/runs").status_code == 401 and one.get("/runs", headers=headers).status_code == 200
        assert cli.main(["serve", "token", "list", "--json", "--root", str(root)]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == "ci"
        assert cli.main(["serve", "token", "revoke", "ci", "--root", str(root)]) == 0
        wait(lambda: one.get("/runs", headers=headers).status_code == 401)
        assert cli.main(["serve", "--port", str(one.port), "--root", str(root)]) == 2
        assert "cannot listen" in capsys.readouterr().err
    finally:
        one.stop()
    assert token not in one.log.read_text()
