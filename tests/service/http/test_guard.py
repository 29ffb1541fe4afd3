"""Who and what is let in."""

import json

from service.http.guard import COOKIE, MAX_BODY_BYTES, Buckets, Rules

RUN = {"problem": 1, "model": "openai/x"}


def test_names_and_pages_of_others_are_refused(client):
    http = client()
    assert http.get("/api/v1/runs").status_code == 200
    for host in ("evil.example", "evil.example:8765", "localhost.evil.example", ""):
        refused = http.get("/api/v1/runs", headers={"Host": host})
        assert refused.status_code == 403 and refused.json()["error"] == "forbidden"
    for host in ("127.0.0.1:8765", "[::1]:8765", "LOCALHOST"):
        assert http.get("/api/v1/runs", headers={"Host": host}).status_code == 200
    for origin in ("http://evil.example", "null", "http://localhost:1"):
        assert http.post("/api/v1/runs/x/pause", headers={"Origin": origin}).status_code == 403
    assert http.post("/api/v1/runs/x/pause", headers={"Origin": "http://localhost"}).status_code == 404
    assert "access-control-allow-origin" not in http.get("/api/v1/runs", headers={"Origin": "http://evil"}).headers


def test_a_body_is_json_and_of_bounded_size(client):
    http = client()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = http.post("/api/v1/runs", content=json.dumps(RUN), headers={"Content-Type": kind})
        assert answer.status_code == 415, kind
    large = b'{"model": "' + b"x" * MAX_BODY_BYTES + b'"}'
    typed = {"Content-Type": "application/json"}
    assert http.post("/api/v1/runs", content=large, headers=typed).status_code == 413
    chunks = (large[at : at + 65536] for at in range(0, len(large), 65536))
    answer = http.post("/api/v1/runs", content=chunks, headers=typed)
    assert answer.status_code == 413 and answer.headers["content-type"] == "application/problem+json"
    assert http.post("/api/v1/runs", content=b"{", headers=typed).status_code == 422
    assert http.post("/api/v1/runs", content=b"\xff", headers=typed).status_code in (400, 422)
    assert http.get("/api/v1/runs?text=a%00b").status_code == 400


def test_nobody_learns_what_files_there_are(client, tmp_path):
    """Files of this machine need `--allow-files`, which is looked at before they are."""
    http = client(files=False)
    (tmp_path / "there.py").write_text("not Python")
    for route, rest in (("runs", {"model": "openai/x"}), ("evaluations", {"source": "x"})):
        suites = [str(tmp_path / name) for name in ("there.py", "nowhere.py", "")]
        said = {http.post(f"/api/v1/{route}", json={"problem": 1, "suite": s, **rest}).text for s in suites}
        assert len(said) == 1 and "not told to allow" in said.pop()


def test_tokens_and_their_scopes(client):
    http = client(Rules(needs_token=True), given="an-operators-own-word")
    assert http.get("/healthz").status_code == 200 and http.get("/readyz").status_code == 200
    for path in ("/api/v1/runs", "/metrics", "/api/v1/openapi.json"):
        refused = http.get(path)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer", path

    def asks(token: str, method: str, path: str, body=None) -> int:
        return http.request(method, path, json=body, headers={"Authorization": f"Bearer {token}"}).status_code

    admin = "an-operators-own-word"
    assert asks(admin, "POST", "/api/v1/tokens", {"name": "r", "scope": "read"}) == 201
    assert asks(admin, "POST", "/api/v1/tokens", {"name": "r", "scope": "run"}) == 409
    read, run = http.tokens.create("reader", "read"), http.tokens.create("runner", "run")
    assert asks(read, "GET", "/api/v1/runs") == asks(run, "GET", "/api/v1/runs") == 200
    assert asks(read, "POST", "/api/v1/runs/x/pause", {}) == 403
    assert asks(run, "POST", "/api/v1/runs/x/pause", {}) == 404
    assert asks(run, "GET", "/api/v1/tokens") == 403 and asks(admin, "GET", "/api/v1/tokens") == 200
    assert http.get("/api/v1/runs", headers={"Cookie": f"{COOKIE}={read}"}).status_code == 200
    for wrong in (read[:-1], read + "x", "rst_x_y", "rst", "", "ünï", read.replace("rst", "x")):
        assert http.get("/api/v1/runs", headers={"Authorization": f"Bearer {wrong}".encode()}).status_code == 401
    assert asks(admin, "DELETE", "/api/v1/tokens/reader") == 200
    assert asks(read, "GET", "/api/v1/runs") == 401
    assert asks(admin, "DELETE", "/api/v1/tokens/nobody") == 404


def test_tokens_are_hashed_at_rest(client):
    http = client()
    token = http.post("/api/v1/tokens", json={"name": "one", "scope": "run"}).json()["token"]
    stored = b"".join(path.read_bytes() for path in http.keeper.root.glob("service.sqlite*"))
    assert b"one" in stored and token.encode() not in stored and token.split("_", 2)[2].encode() not in stored
    assert token not in http.get("/api/v1/tokens").text


def test_a_token_that_is_wrong_is_refused_also_where_none_is_needed(client):
    assert client().get("/api/v1/runs", headers={"Authorization": "Bearer nonsense"}).status_code == 401


def test_too_many_requests(client):
    http = client(Rules(rate=0.01, burst=3.0))  # so slow that a busy machine earns no further request
    answers = [http.get("/api/v1/problems/1") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1


def test_buckets_fill_again():
    buckets = Buckets(rate=2.0, burst=2.0, most=2)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert buckets.take("b", 0.0) == 0.0 and buckets.take("a", 0.5) == 0.0
    buckets.take("c", 0.5)
    assert len(buckets._buckets) == 2
    assert Buckets(rate=0.0, burst=0.0).take("a") == 0.0
