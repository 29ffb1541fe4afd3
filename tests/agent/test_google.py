"""The Gemini adapter: Google's real SDK against a local HTTP server that speaks its wire format."""

from __future__ import annotations

import base64
import json
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agent.models.base import ContextOverflowError, ModelError
from agent.models.google import Google
from harness.errors import UsageError
from runs.messages import Message, ToolCall, Turn, Usage

KEY = "AIza-test-key-0123456789"
MODEL = "gemini-3.1-pro-preview"
SCHEMA = {"type": "object", "properties": {"source": {"type": "string"}}, "required": ["source"]}
TOOLS = [
    {"name": "write_candidate", "description": "Write.", "parameters": SCHEMA},
    {"name": "compile", "description": "Build.", "parameters": {"type": "object", "properties": {}}},
]
HELLO = (Message(role="system", text="be good"), Message(role="user", text="hello"))
# Bytes whose two base64 alphabets differ: what goes back must be what came.
FIRST, LAST = (base64.urlsafe_b64encode(raw).decode() for raw in (b"\xff\xfe\xfa first?>", b"\xfb\xef last"))


@dataclass
class Answer:
    chunks: list[Any] = field(default_factory=list)
    """Sent as server-sent events: dicts as JSON, bytes as they are."""
    status: int = 200
    body: Any = None
    """Of an error, in place of chunks."""
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Whether the connection ends in the middle of the response."""
    silent: bool = False
    """Whether nothing is ever sent."""


class Server(ThreadingHTTPServer):
    """Gives its answers in order, the last one again and again, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.paths.append(self.path)
        self.server.keys.append(self.headers.get("x-goog-api-key", ""))
        answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if answer.silent:
            self.server.ended.wait(30)
            return
        stream = answer.body is None
        body = b"".join(map(event, answer.chunks)) if stream else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
        self.send_header("Content-Length", str(len(body) + (100 if answer.cut else 0)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def event(chunk: Any) -> bytes:
    return chunk if isinstance(chunk, bytes) else b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n"


def chunk(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": MODEL, "responseId": "r1", **more}


def usage(prompt: int = 100, output: int = 20, **more: int) -> dict[str, Any]:
    return {"usageMetadata": {"promptTokenCount": prompt, "candidatesTokenCount": output, **more}}


def say(text: str = "hi", **more: Any) -> Answer:
    return Answer([chunk({"text": text}, finish="STOP", **usage(), **more)])


def failure(status: int, message: str = "no", code: str = "X", details: list[Any] | None = None, **more: str) -> Answer:
    error = {"code": status, "message": message, "status": code, "details": details or []}
    return Answer(
        status=status, body={"error": error}, headers={key.replace("_", "-"): value for key, value in more.items()}
    )


def retry_info(delay: str) -> dict[str, str]:
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


def quota(name: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": name}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


class Time(list[float]):
    """A clock that only sleep moves, and what was slept."""

    def sleep(self, seconds: float) -> None:
        self.append(seconds)

    def clock(self) -> float:
        return sum(self)


@pytest.fixture
def slept() -> Time:
    """Seconds that the adapter would have waited."""
    return Time()


@pytest.fixture
def heard() -> list[str]:
    """What a person who watches would have seen."""
    return []


@pytest.fixture
def model(server: Server, slept: Time, heard: list[str]) -> Google:
    return Google(MODEL, sleep=slept.sleep, clock=slept.clock, on_text=lambda text, thought: heard.append(text))


WRITE = {"functionCall": {"name": "write_candidate", "args": {"source": "x = 'é'"}}, "thoughtSignature": FIRST}
COMPILE = {"functionCall": {"name": "compile", "args": {}}}


def test_a_reply(server: Server, model: Google, heard: list[str], slept: Time) -> None:
    server.answers = [
        Answer(
            [
                chunk({"text": "pondering", "thought": True}, **usage(100, 0)),
                chunk({"text": "I "}, **usage(100, 3)),
                chunk({"text": "write."}, WRITE),
                chunk(COMPILE, finish="STOP", **usage(100, 20, cachedContentTokenCount=64, thoughtsTokenCount=7)),
            ]
        )
    ]
    turn = model.reply(HELLO, TOOLS)
    assert (turn.text, turn.stop, turn.waited_s) == ("I write.", "STOP", 0.0)
    assert heard == ["pondering", "I ", "write."]
    first, second = (made.id for made in turn.tool_calls)
    assert first != second
    assert turn.tool_calls == (
        ToolCall(id=first, name="write_candidate", arguments='{"source": "x = \'é\'"}'),
        ToolCall(id=second, name="compile", arguments="{}"),
    )
    assert turn.usage == Usage(input_tokens=100, cached_tokens=64, output_tokens=27, reasoning_tokens=7)
    assert turn.cost_usd == pytest.approx((36 * 2.0 + 64 * 0.2 + 27 * 12.0) / 1e6)
    assert turn.raw and turn.raw["modelVersion"] == MODEL and turn.raw["usageMetadata"]["thoughtsTokenCount"] == 7
    assert KEY not in turn.model_dump_json()
    assert (server.keys, slept) == ([KEY], [])
    assert server.paths[0].endswith(f"/models/{MODEL}:streamGenerateContent?alt=sse")
    (request,) = server.requests
    assert request["systemInstruction"]["parts"] == [{"text": "be good"}]
    assert request["contents"] == [{"role": "user", "parts": [{"text": "hello"}]}]
    (declared,) = request["tools"]
    assert [tool["name"] for tool in declared["functionDeclarations"]] == ["write_candidate", "compile"]
    # Either spelling is right in the wire format, and the SDK has used both.
    written = declared["functionDeclarations"][0]
    assert (written.get("parametersJsonSchema") or written["parameters_json_schema"]) == SCHEMA
    assert "thinkingConfig" not in request.get("generationConfig", {})


def test_two_calls_and_the_signature_go_back_where_they_were(server: Server, model: Google) -> None:
    server.answers = [
        Answer([chunk({"text": "I "}), chunk({"text": "write."}), chunk(WRITE), chunk(COMPILE, finish="STOP")]),
        say("fine"),
    ]
    turn = model.reply(HELLO, TOOLS)
    resumed = Turn.model_validate_json(turn.model_dump_json())  # as from a record
    spoken = Message(role="assistant", text=resumed.text, tool_calls=resumed.tool_calls, opaque=resumed.opaque)
    results = [
        Message(role="tool", text=text, call_id=made.id, tool=made.name)
        for made, text in zip(resumed.tool_calls, ("written", "built"), strict=True)
    ]
    model.reply((*HELLO, spoken, *results, Message(role="user", text="go on")), TOOLS)
    first, second = server.requests
    assert second["contents"] == [
        {"role": "user", "parts": [{"text": "hello"}]},
        {"role": "model", "parts": [{"text": "I write."}, WRITE, COMPILE]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "write_candidate", "response": {"output": "written"}}},
                {"functionResponse": {"name": "compile", "response": {"output": "built"}}},
            ],
        },
        {"role": "user", "parts": [{"text": "go on"}]},
    ]
    assert second["contents"][:1] == first["contents"], "a prefix that changes is not cached"
    assert (second["systemInstruction"], second["tools"]) == (first["systemInstruction"], first["tools"])


def test_a_signature_behind_the_text_stays_a_part_of_its_own(server: Server, model: Google) -> None:
    signed = {"text": "", "thoughtSignature": LAST}
    server.answers = [Answer([chunk({"text": "a"}), chunk({"text": "b"}), chunk(signed, finish="STOP")]), say()]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "ab"
    model.reply((*HELLO, Message(role="assistant", text=turn.text, opaque=turn.opaque)), TOOLS)
    assert server.requests[1]["contents"][1]["parts"] == [{"text": "ab"}, signed]


def test_ids_that_the_server_gives_are_kept(server: Server, model: Google) -> None:
    made = {"functionCall": {"id": "fc-1", "name": "compile", "args": {}}}
    server.answers = [Answer([chunk(made, finish="STOP")]), say()]
    turn = model.reply(HELLO, TOOLS)
    assert [call.id for call in turn.tool_calls] == ["fc-1"]
    spoken = Message(role="assistant", tool_calls=turn.tool_calls, opaque=turn.opaque)
    model.reply((*HELLO, spoken, Message(role="tool", text="built", call_id="fc-1", tool="compile")), TOOLS)
    response = {"id": "fc-1", "name": "compile", "response": {"output": "built"}}
    assert server.requests[1]["contents"][1:] == [
        {"role": "model", "parts": [made]},
        {"role": "user", "parts": [{"functionResponse": response}]},
    ]


def test_what_another_model_said_is_put_in_this_ones_form(server: Server, model: Google) -> None:
    server.answers = [say()]
    calls = (
        ToolCall(id="c1", name="compile", arguments='{"a": 1}'),
        ToolCall(id="c2", name="compile", arguments="{not JSON"),
    )
    model.reply((*HELLO, Message(role="assistant", text="hm", tool_calls=calls)), TOOLS)
    assert server.requests[0]["contents"][1]["parts"] == [
        {"text": "hm"},
        {"functionCall": {"id": "c1", "name": "compile", "args": {"a": 1}}},
        {"functionCall": {"id": "c2", "name": "compile", "args": {}}},
    ]


def test_the_level_of_thinking_may_be_chosen(server: Server) -> None:
    server.answers = [say()]
    Google(MODEL, effort="low").reply(HELLO, [])
    assert list(server.requests[0]["generationConfig"]["thinkingConfig"].values()) == ["LOW"]
    assert "tools" not in server.requests[0]
    with pytest.raises(UsageError, match=r"'hard' is not a thinking level: choose from .*low"):
        Google(MODEL, effort="hard")


def test_half_an_emoji_is_replaced(server: Server, model: Google) -> None:
    server.answers = [
        Answer(
            [b'data: {"candidates": [{"content": {"parts": [{"text": "half \\ud83d"}]}, "finishReason": "STOP"}]}\n\n']
        )
    ]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "half ?"
    assert turn.model_dump_json()


def test_the_advised_pause_is_taken(server: Server, model: Google, slept: Time) -> None:
    server.answers = [
        failure(429, code="RESOURCE_EXHAUSTED", details=[retry_info("7s"), quota("RequestsPerMinutePerProject")]),
        failure(429, code="RESOURCE_EXHAUSTED", details=[retry_info("2.5s")]),
        failure(503, Retry_After="30"),
        say(),
    ]
    turn = model.reply(HELLO, TOOLS)
    assert turn.text == "hi" and len(server.requests) == 4
    assert all(asked <= waited < asked + 2 for asked, waited in zip((7, 2.5, 30), slept, strict=True))
    assert turn.waited_s == pytest.approx(sum(slept))


@pytest.mark.parametrize(
    "details",
    [[retry_info("86400s")], [retry_info("11s"), quota("GenerateRequestsPerDayPerProjectPerModel")]],
    ids=["a pause of a day", "the quota of a day, whatever pause it advises"],
)
def test_a_quota_of_hours_is_not_waited_for(server: Server, model: Google, slept: Time, details: list[Any]) -> None:
    server.answers = [failure(429, "You exceeded your current quota", "RESOURCE_EXHAUSTED", details)]
    with pytest.raises(ModelError, match=r"^google/gemini-3.1-pro-preview: .*429 RESOURCE_EXHAUSTED.*You exceeded"):
        model.reply(HELLO, TOOLS)
    assert (len(server.requests), slept) == (1, [])


def test_the_servers_own_faults_are_retried(server: Server, model: Google, slept: Time) -> None:
    server.answers = [failure(500), failure(502), failure(503, "overloaded"), failure(504), say()]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert (len(server.requests), len(slept)) == (5, 4), "no retries but ours"


def test_retries_end(server: Server, model: Google, slept: Time) -> None:
    server.answers = [failure(503, "overloaded")]
    with pytest.raises(ModelError, match=r"503 X.*overloaded"):
        model.reply(HELLO, TOOLS)
    assert len(server.requests) == len(slept) + 1 > 3


BROKEN = [
    pytest.param(Answer([chunk({"text": "ha"})], cut=True), id="the connection ends"),
    pytest.param(Answer([chunk({"text": "ha"}), chunk(COMPILE)]), id="the stream ends without a reason"),
    pytest.param(Answer([chunk({"text": "ha"}), b'data: {"candida\n\n']), id="half a chunk"),
    pytest.param(Answer([chunk({"text": "ha"}), b'data: {"error": {"code": 503, "message": "x"}}\n\n']), id="an error"),
    pytest.param(Answer([b"data: <html>\n\n"]), id="not JSON"),
    pytest.param(Answer([]), id="nothing"),
    pytest.param(Answer(status=502, body="<html>bad gateway</html>"), id="a gateway's page"),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_stream_is_asked_for_again(server: Server, model: Google, slept: Time, broken: Answer) -> None:
    server.answers = [broken, say("whole")]
    turn = model.reply(HELLO, TOOLS)
    assert (turn.text, turn.tool_calls, len(slept)) == ("whole", (), 1)
    assert len(server.requests) == 2


def test_a_server_that_says_nothing(server: Server, slept: Time) -> None:
    model = Google(MODEL, timeout_s=0.2, sleep=slept.sleep, clock=slept.clock)
    server.answers = [Answer(silent=True), say()]
    assert model.reply(HELLO, TOOLS).text == "hi"
    assert len(slept) == 1


def test_no_connection(server: Server, slept: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(ModelError, match=r"^google/"):
        Google(MODEL, sleep=slept.sleep, clock=slept.clock).reply(HELLO, TOOLS)
    assert len(slept) > 2


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_wrong_request_fails_at_once(server: Server, model: Google, slept: Time, status: int) -> None:
    server.answers = [failure(status, f"API key not valid: {KEY}.\nSee\nbelow.", "INVALID_ARGUMENT")]
    with pytest.raises(ModelError) as caught:
        model.reply(HELLO, TOOLS)
    assert not isinstance(caught.value, ContextOverflowError)
    assert (len(server.requests), slept) == (1, [])
    message = str(caught.value)
    assert message.startswith(f"google/{MODEL}: ") and f"{status} INVALID_ARGUMENT" in message
    assert "API key not valid: [key]" in message and "\n" not in message and KEY not in message


def test_a_conversation_that_is_too_long(server: Server, model: Google, slept: Time) -> None:
    said = "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576)."
    server.answers = [failure(400, said, "INVALID_ARGUMENT")]
    with pytest.raises(ContextOverflowError, match="1200293"):
        model.reply(HELLO, TOOLS)
    assert (len(server.requests), slept) == (1, [])


@pytest.mark.parametrize(
    ("finish", "parts", "text"),
    [
        ("MALFORMED_FUNCTION_CALL", (), "[The reply ended early: MALFORMED_FUNCTION_CALL]"),
        ("SAFETY", ({"text": "I"},), "I\n\n[The reply ended early: SAFETY]"),
        ("RECITATION", (), "[The reply ended early: RECITATION]"),
        ("MAX_TOKENS", ({"text": "long"},), "long"),
    ],
)
def test_a_reply_that_ends_early_is_paid_for_and_says_why(
    server: Server, model: Google, slept: Time, finish: str, parts: Any, text: str
) -> None:
    server.answers = [Answer([chunk(*parts, finish=finish, **usage(100, 5))]), say()]
    turn = model.reply(HELLO, TOOLS)
    assert (turn.text, turn.stop, turn.tool_calls, slept) == (text, finish, (), [])
    assert turn.usage.output_tokens == 5 and turn.cost_usd
    nudged = (*HELLO, Message(role="assistant", text=turn.text, opaque=turn.opaque), Message(role="user", text="again"))
    model.reply(nudged, TOOLS)
    sent = list(parts) or [{"text": text}]
    assert server.requests[1]["contents"][1:] == [
        {"role": "model", "parts": sent},
        {"role": "user", "parts": [{"text": "again"}]},
    ]


def test_an_empty_reply_is_a_turn_and_is_not_sent_back(server: Server, model: Google, slept: Time) -> None:
    server.answers = [Answer([chunk(finish="STOP", **usage(100, 0))]), say()]
    turn = model.reply(HELLO, TOOLS)
    assert (turn.text, turn.tool_calls, turn.stop, turn.usage.input_tokens, slept) == ("", (), "STOP", 100, [])
    model.reply((*HELLO, Message(role="assistant", opaque=turn.opaque), Message(role="user", text="again")), TOOLS)
    assert [content["role"] for content in server.requests[1]["contents"]] == ["user", "user"]


def test_a_prompt_that_is_refused(server: Server, model: Google, slept: Time) -> None:
    server.answers = [Answer([{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, **usage(100, 0)}])]
    with pytest.raises(ModelError, match="the prompt was blocked: PROHIBITED_CONTENT"):
        model.reply(HELLO, TOOLS)
    assert (len(server.requests), slept) == (1, [])


def test_prices(server: Server) -> None:
    server.answers = [say()]
    assert Google(MODEL).priced()
    unknown = Google("gemini-99-ultra")
    assert not unknown.priced()
    assert unknown.reply(HELLO, TOOLS).cost_usd is None


def test_without_a_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY")
    with pytest.raises(UsageError, match="GEMINI_API_KEY"):
        Google(MODEL)


def test_without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.genai", None)
    with pytest.raises(UsageError, match=r"pip install 'ringsmith\[models\]'"):
        Google(MODEL)
