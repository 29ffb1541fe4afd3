"""What a node lets in: tokens, versions, sizes, certificates. Nothing is evaluated."""

import hashlib
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError, UsageError
from harness.remote import client as client_module
from harness.remote import node as node_module
from harness.remote import suites
from harness.remote.client import facts
from harness.remote.credentials import is_loopback, token_hash
from harness.remote.messages import SessionSettings, Suite, identity
from harness.sandboxes import Access, checked, open_sandbox
from harness.types import Backend, Candidate
from tests.nodes import ROOT, node

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """With a token of which it has the digest only, and small requests."""
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(f"sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    with node("--token-file", file, "--max-request-mb", 0.05, "--isolation", "auto") as one:
        yield one


def raw(served, method: str, path: str, body=None, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "null")
    finally:
        connection.close()


def bearer() -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKEN}"}


def settings(**changes) -> str:
    given = {"identity": identity().model_dump(), "platform": "cpu", "world_size": 2, "limits": {}, "isolation": "auto"}
    return json.dumps(given | changes)


SESSION = f"/v1/sessions/{'a' * 32}"


def test_only_the_token_opens(served):
    assert facts(served.url, Access(TOKEN)).identity == identity()
    for access in (Access(), Access("x" * 32), Access(TOKEN[:-1])):
        with pytest.raises(UsageError, match="refuses the token"):
            facts(served.url, access)
    for path in ("/", "/openapi.json", "/v1/node", SESSION):
        assert raw(served, "GET", path)[0] == 401
    assert raw(served, "GET", "/v1/node", Authorization=f"Basic {TOKEN}")[0] == 401


def test_a_token_must_be_long_and_may_be_a_digest():
    assert token_hash(TOKEN) == token_hash(f"sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}")
    for bad in ("secret", "sha256:1234", "a" * 19, "ten letters and nine", "ü" * 20):
        with pytest.raises(UsageError, match="at least 20 ASCII characters: `openssl rand -hex 32`"):
            token_hash(bad)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.0.0.2", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_which_addresses_only_this_machine_reaches(host, local):
    assert is_loopback(host) is local


def test_without_a_token_only_loopback_names_are_answered():
    with node() as one:
        for host in ("127.0.0.1", "LOCALHOST", f"[::1]:{one.port}"):
            assert raw(one, "GET", "/v1/node", Host=host)[0] == 200
        status, said = raw(one, "GET", "/v1/node", Host=f"evil.example:{one.port}")
        assert status == 403 and "loopback" in said["message"]


def test_another_version_is_refused_by_both_sides(served, monkeypatch):
    other = identity().model_copy(update={"code": "0" * 12})
    status, said = raw(served, "PUT", SESSION, settings(identity=other.model_dump()), **bearer())
    assert status == 409 and "not be comparable" in said["message"] and said["kind"] == "usage"
    monkeypatch.setattr(client_module, "identity", lambda: other)
    with open_sandbox(served.url, "cpu", 2, access=Access(TOKEN)) as box, pytest.raises(UsageError, match="comparable"):
        box.environment()


def test_a_client_cannot_weaken_the_jail(served):
    status, said = raw(served, "PUT", SESSION, settings(isolation="none"), **bearer())
    assert status == 409 and "isolation auto" in said["message"]
    assert raw(served, "PUT", SESSION, settings(isolation="strict"), **bearer())[0] == 204


def test_too_large_a_request_is_refused_whether_it_says_so_or_not(served):
    body = b'{"job": "' + b"x" * 100_000
    assert raw(served, "PUT", f"{SESSION}/jobs/{'b' * 32}", body, **bearer())[0] == 413
    pieces = (body[at : at + 1000] for at in range(0, len(body), 1000))
    assert raw(served, "PUT", f"{SESSION}/jobs/{'b' * 32}", pieces, **bearer())[0] == 413
    large = Candidate(source="#" * 100_000, backend=Backend.cpp)
    with (
        open_sandbox(served.url, "cpu", 2, access=Access(TOKEN)) as box,
        pytest.raises(UsageError, match=r"the node .* takes 50000"),
    ):
        box.compile(large)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/v1/sessions/short", settings(), 422),
        ("PUT", SESSION, "{", 422),
        ("PUT", SESSION, "[" * 40_000, 400),
        ("PUT", SESSION, b'{"identity": "\xff"}', 400),
        ("PUT", SESSION, settings(world_size=1000), 422),
        ("PUT", SESSION, settings(typo=1), 422),
        ("PUT", f"{SESSION}/jobs/{'b' * 32}", '{"job": {"do": "rm"}}', 422),
        ("PUT", f"{SESSION}/jobs/{'b' * 32}",
         json.dumps({"job": {"do": "compile", "candidate": {"source": "\ud800", "backend": "cpp"}}}), 409),
        ("PUT", f"{SESSION}/jobs/{'b' * 32}", json.dumps({"job": {"do": "topology"}, "suite": "f" * 32}), 404),
        ("GET", f"{SESSION}/jobs/{'d' * 32}?wait=nan", None, 422),
        ("GET", f"{SESSION}/jobs/{'d' * 32}", None, 404),
        ("GET", f"{SESSION}/jobs/{'d' * 32}/trace", None, 404),
        ("POST", SESSION, None, 405),
        ("GET", "/v1/nothing", None, 404),
    ],
)  # fmt: skip
def test_what_is_no_request_of_ours_is_told_so(served, method, path, body, status):
    assert raw(served, "PUT", SESSION, settings(), **bearer())[0] == 204
    got, said = raw(served, method, path, body, **bearer())
    assert got == status and said["kind"] in ("usage", "lost") and said["message"]


def test_a_suite_is_refused_and_cannot_leave_its_folder(served, tmp_path):
    suite = Suite(name="x", is_file=False, files={"../evil.py": "x = 1\n"})
    status, said = raw(served, "PUT", f"/v1/suites/{suite.digest}", suite.model_dump_json(), **bearer())
    assert status == 409 and "--accept-suites" in said["message"]
    for name in ("../evil.py", "/etc/evil.py", "a/../../evil.py", ".hidden.py", "evil.so"):
        with pytest.raises(UsageError, match="cannot be called"):
            suites.unpack(Suite(name="x", is_file=False, files={name: ""}), tmp_path)
    assert not list(tmp_path.rglob("*evil*"))
    for files in ({}, {"a.py": "", "b.py": ""}, {"a.py/b.py": "", "a.py": ""}, {f"{'a' * 300}.py": ""}):
        with pytest.raises(UsageError):
            suites.unpack(Suite(name="x", is_file=True, files=files), tmp_path)


def test_tls_by_flags(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    with node("--tls-cert", cert, "--tls-key", key) as served:
        assert served.url.startswith("https://")
        assert facts(served.url, Access(ca=cert)).identity == identity()
        with pytest.raises(HarnessError, match="--sandbox-ca"):
            facts(served.url, Access())


def test_sessions_are_spread_over_the_gpus(tmp_path, monkeypatch):
    held = {0, 1}  # by somebody who is no session
    monkeypatch.setattr(node_module, "gpu_sets", lambda world_size: [(0, 1), (2, 3), (4, 5)])
    monkeypatch.setattr(node_module, "free_devices", lambda kind, devices: [d for d in devices if d not in held])
    all_sessions = node_module.Node(tmp_path, 8, 600)
    asked = SessionSettings.model_validate_json(settings(platform="cuda"))
    for number in range(5):
        all_sessions.begin(str(number), asked)
        all_sessions.give_devices(all_sessions.session(str(number)))
    given = [all_sessions.session(str(number)).devices for number in range(5)]
    assert given == [(2, 3), (4, 5), (0, 1), (2, 3), (4, 5)]
    all_sessions.end("2")
    all_sessions.give_devices(all_sessions.session("3"))  # its process was lost
    assert all_sessions.session("3").devices == (0, 1)
    monkeypatch.setattr(node_module, "gpu_sets", lambda world_size: [])
    all_sessions.give_devices(all_sessions.session("3"))
    assert all_sessions.session("3").devices is None
    all_sessions.close()


def test_addresses():
    assert checked("https://node:1/") == "https://node:1"
    assert checked("batch:/tmp/../tmp/x") == "batch:/tmp/x"
    for wrong in ("node:1", "ftp://node", "http://", "http://a:b@node", "http://node?x", "batch:"):
        with pytest.raises(UsageError):
            checked(wrong)


def test_a_node_needs_no_model_client_and_its_server_no_torch(tmp_path):
    blocked = ("anthropic", "google.genai", "httpx", "litellm", "openai", "tenacity")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({blocked})\n")
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    with node(environment=environment) as served, open_sandbox(served.url, "cpu", 2, access=Access()) as box:
        assert box.environment().torch
        assert "libtorch" not in Path(f"/proc/{served.process.pid}/maps").read_text()
    command = [sys.executable, "-m", "service.cli", "eval", "--batch", tmp_path]
    assert subprocess.run(command, cwd=ROOT, env=os.environ | environment).returncode == 0
