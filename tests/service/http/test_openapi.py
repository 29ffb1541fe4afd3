"""The OpenAPI document, and whether any request that it describes makes the server fail."""

import ast
import os

import schemathesis
import schemathesis.specs.openapi.schemas  # pytest parses it, which must not meet a thread that parses
from hypothesis import HealthCheck, Phase, given, settings

from harness.types import Verdict
from problems import parsing
from tests.service.jobs.conftest import wait
from tests.service.scripts import solves

EXAMPLES = int(os.environ.get("RINGSMITH_API_EXAMPLES", "5"))
"""Of each operation."""
_SENT = ("method", "url", "params", "headers", "json", "data")


def _locked(call, *arguments, **more):
    with parsing.LOCK:  # the server's threads parse meanwhile
        return call(*arguments, **more)


def test_the_document_names_every_route_and_its_errors(client):
    document = client().get("/api/v1/openapi.json").json()
    assert {"/api/v1/runs", "/api/v1/runs/{run_id}/stream", "/api/v1/sweeps/{name}/report", "/metrics"} <= set(
        document["paths"]
    )
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            assert (route["summary"] and route.get("description")) or path in ("/healthz",), (method, path)
    assert document["components"]["schemas"]["Verdict"]["enum"] == [verdict.value for verdict in Verdict]
    assert document["components"]["schemas"]["Problem"]["required"] == ["error", "detail"]


def test_no_request_makes_the_server_fail(client, thinks, monkeypatch):
    one_at_a_time = ast.parse  # hypothesis parses too
    monkeypatch.setattr(ast, "parse", lambda *source, **more: _locked(one_at_a_time, *source, **more))
    http = client()
    run_id = http.post("/api/v1/runs", json=thinks(solves(1))).json()["run_id"]
    wait(lambda: not http.keeper.is_active(run_id))
    http.keeper.files = False
    schema = schemathesis.openapi.from_dict(http.get("/api/v1/openapi.json").json())
    asked, failed = [], []
    for operation in schema.get_all_operations():

        @given(case=operation.ok().as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case):
            if len(asked) % 2 and "run_id" in case.path_parameters:
                case.path_parameters["run_id"] = run_id
            sent = case.as_transport_kwargs(base_url="http://localhost")
            sent["headers"].pop("Authorization", None)  # no made-up token gets further
            answer = http.request(**{name: sent[name] for name in _SENT if sent.get(name) is not None})
            asked.append((case.method, case.path, answer.status_code))
            if answer.status_code >= 500:
                failed.append((sent, answer.text))

        ask()
    assert not failed
    assert len({(method, path) for method, path, _ in asked}) == sum(1 for _ in schema.get_all_operations())
    assert sum(status < 300 for _, _, status in asked) > len(asked) / 8
