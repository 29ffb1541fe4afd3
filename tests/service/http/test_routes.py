"""What the routes answer, over sandboxes of no processes."""

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runs.record import Record
from tests.service.jobs.conftest import wait
from tests.service.scripts import solves, turn

READS = [turn(("read", {"what": "reference"})) for _ in range(100)]


def finished(http, run_id: str) -> dict:
    wait(lambda: not http.keeper.is_active(run_id))
    http.keeper.index.refresh()
    return http.get(f"/api/v1/runs/{run_id}").json()


def test_a_run_is_begun_shown_and_read(client, thinks):
    http = client()
    begun = http.post("/api/v1/runs", json=thinks(solves(1)) | {"steps": 7, "speedup_target": 1.1})
    assert begun.status_code == 201
    run_id = begun.json()["run_id"]
    assert begun.headers["location"] == f"/api/v1/runs/{run_id}"
    shown = finished(http, run_id)
    run = Record(http.keeper.root / run_id).run()
    assert shown["reason"] == run.reason and shown["config"]["budget"]["steps"] == 7
    assert shown["official"]["verdict"] == "passed" and shown["attempts"] == run.evaluated
    page = http.get(f"/api/v1/runs/{run_id}/attempts?limit=1&offset=1").json()
    assert page["total"] == len(run.attempts) and page["items"][0]["candidate"] == run.attempts[1].candidate
    best = http.get(f"/api/v1/runs/{run_id}/candidates/{shown['best']['candidate']}")
    assert best.headers["content-type"] == "text/plain; charset=utf-8" and "solution" in best.text
    assert best.headers["x-content-type-options"] == "nosniff"
    lines = (http.keeper.root / run_id / "events.jsonl").read_text().splitlines()
    events = http.get(f"/api/v1/runs/{run_id}/events?after=2&limit=2").json()
    assert events == {"events": [json.loads(line) for line in lines[2:4]], "first": 3, "total": len(lines)}
    listed = http.get("/api/v1/runs", params={"state": "finished", "text": "allreduce"}).json()
    assert listed["total"] == 1 and listed["items"][0]["run_id"] == run_id
    assert http.get("/api/v1/runs", params={"problem": 2}).json() == {"items": [], "total": 0}


def test_the_stream_of_a_run_that_is_over(client, thinks):
    http = client()
    run_id = http.post("/api/v1/runs", json=thinks(solves(1))).json()["run_id"]
    total = finished(http, run_id)["events"]
    lines = (http.keeper.root / run_id / "events.jsonl").read_text().splitlines()
    whole = http.get(f"/api/v1/runs/{run_id}/stream")
    assert whole.headers["content-type"].startswith("text/event-stream")
    blocks = whole.text.strip().split("\n\n")
    assert blocks[-1].startswith("event: end")
    assert blocks[:-1] == [f"id: {number}\ndata: {line}" for number, line in enumerate(lines, start=1)]
    rest = http.get(f"/api/v1/runs/{run_id}/stream", headers={"Last-Event-ID": str(total - 1)}).text
    assert rest.startswith(f"id: {total}\n") and rest.count("data: ") == 2
    assert http.get(f"/api/v1/runs/{run_id}/stream?after={total}").status_code == 204


def test_persons_enter_a_run(client, thinks):
    http = client()
    body = thinks(READS, 0.1)
    run_id = http.post("/api/v1/runs", json=body).json()["run_id"]
    wait(lambda: http.get(f"/api/v1/runs/{run_id}").status_code == 200)
    assert http.get(f"/api/v1/runs/{run_id}").json()["status"] == "running"
    api = f"/api/v1/runs/{run_id}"
    key = {"Idempotency-Key": "one hint"}
    for _ in range(3):
        assert http.post(f"{api}/hint", json={"text": "use TMA"}, headers=key).status_code == 200
    assert http.post(f"{api}/hint", json={"text": "another"}, headers=key).status_code == 409
    assert http.post(f"{api}/candidate", json={"source": "y = 2\n"}).json()["taken"] == "before the next step"
    assert http.post(f"{api}/pause").status_code == 200
    wait(lambda: http.get(api).json()["status"] == "paused")
    assert http.post(f"{api}/resume").status_code == 200
    wait(lambda: http.get(api).json()["status"] == "running")
    assert http.post(f"{api}/cancel").status_code == 200
    shown = finished(http, run_id)
    assert shown["reason"] == "cancelled" and shown["helped"]
    acted = [e for e in http.get(f"{api}/events?limit=1000").json()["events"] if e["kind"] == "person_acted"]
    assert [event["action"] for event in acted] == ["hint", "candidate", "pause", "resume", "cancel"]
    assert http.post(f"{api}/pause").status_code == 409
    assert http.post(f"{api}/hint", json={"text": " "}).status_code == 422
    fork = http.post(f"{api}/fork", json={"attempt": 1, "hint": "again", "steps": 1, "model": thinks(READS)["model"]})
    assert fork.status_code == 201
    forked = finished(http, fork.json()["run_id"])
    assert forked["config"]["budget"]["steps"] == 1 and forked["helped"] and forked["reason"] == "budget: steps"
    assert http.post(f"{api}/fork", json={"attempt": 5}).status_code == 404


def test_an_evaluation_without_a_model(client):
    http = client()
    body = {"problem": "allreduce", "source": "x = 'wrong'\n", "platform": "cpu", "world_size": 2}
    asked = http.post("/api/v1/evaluations", json=body)
    assert asked.status_code == 202
    result = http.get(asked.headers["location"], params={"wait": 20}).json()
    assert result["state"] == "ended" and result["evaluation"]["verdict"] == "wrong_values"
    assert http.get("/api/v1/evaluations/none").status_code == 404


def test_a_sweep_and_its_report(client, thinks):
    http = client()
    body = {"problems": "1,2", "models": thinks(solves(1))["model"], "platform": "cpu", "world_size": 2}
    assert http.put("/api/v1/sweeps/two", json=body).status_code == 202
    wait(lambda: http.get("/api/v1/sweeps/two").json()["state"] == "ended")
    shown = http.get("/api/v1/sweeps/two").json()
    assert shown["cells"]["solved"] == 2 and shown["reason"] == "done" and shown["plan"]["cases"].keys() == {"1", "2"}
    assert [line["name"] for line in http.get("/api/v1/sweeps").json()["items"]] == ["two"]
    page = http.get("/api/v1/sweeps/two/report")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert json.loads(http.get("/api/v1/sweeps/two/report?form=json").text)
    assert http.post("/api/v1/sweeps/two/drain").status_code == 409
    assert http.get("/api/v1/sweeps/none").status_code == 404
    assert http.put("/api/v1/sweeps/two", json={"steps": 3}).status_code == 422


def test_problems(client):
    http = client()
    listed = http.get("/api/v1/problems").json()
    assert listed["total"] == 87 and listed["items"][0]["number"] == 1
    shown = http.get("/api/v1/problems/gemm_allreduce").json()
    assert shown["number"] == 13 and "def reference" in shown["statement"]
    assert http.get("/api/v1/problems/999").status_code == 404


def test_metrics(client, thinks):
    http = client()
    run_id = http.post("/api/v1/runs", json=thinks(solves(1))).json()["run_id"]
    finished(http, run_id)
    families = {f.name: f for f in text_string_to_metric_families(http.get("/metrics").text)}
    ended = {s.labels["verdict"]: s.value for s in families["ringsmith_verdicts"].samples}
    assert ended == {"passed": 1.0}
    assert families["ringsmith_device_seconds"].samples[0].value > 0
    assert families["ringsmith_runs"].samples[0].labels == {"state": "finished"}
    assert {"ringsmith_runs_waiting", "ringsmith_devices_leased", "ringsmith_spend_usd"} <= families.keys()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"problem": 1}, "model"),
        ({"problem": 1, "model": "x", "steps": 0}, "steps"),
        ({"problem": 1, "model": "x", "usd": "nan"}, "usd"),
        ({"problem": 1, "model": "x", "stepz": 1}, "stepz: no such field"),
        ({"problem": 1, "model": "nobody"}, "not a model"),
        ({"problem": 4711, "model": "openai/x"}, "no problem"),
        ({"problem": 1, "model": "\ud800"}, "model"),
        ([1, 2], ""),
    ],
)
def test_errors_are_one_line_and_do_not_repeat_what_was_sent(client, body, says):
    answer = client().post("/api/v1/runs", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422 and answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told.keys() == {"error", "detail"} and says in told["detail"] and "\n" not in told["detail"]


def test_unknown_things(client):
    http = client()
    for path in (
        "/api/v1/runs/x",
        "/api/v1/runs/..",
        "/api/v1/runs/%2e%2e",
        "/api/v1/runs/x/stream",
        "/api/v1/nothing",
    ):
        answer = http.get(path)
        assert answer.status_code == 404 and answer.json()["error"] == "not_found", path
    assert http.delete("/api/v1/runs").status_code == 405
