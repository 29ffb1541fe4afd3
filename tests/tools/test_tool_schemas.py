"""A tool is its function: schema from signature and docstring, arguments checked before it runs."""

import json
from typing import Literal

import pytest

from tools import catalogue
from tools.base import Tool, ToolError, ToolResult

each_tool = pytest.mark.parametrize("tool", catalogue.TOOLS.values(), ids=list(catalogue.TOOLS))


def sample(session, text: str, count: int = 1, share: float | None = None, mode: Literal["a", "b"] = "a", on: bool = 0):
    """Do something
    with text.

    Arguments:
    text: What to do it
        with.
    count: How often.
    share: How much: a number.
    mode: Which way.
    on: Whether.
    """
    return ToolResult(text=f"{text!r} {count} {share} {mode} {on}")


SAMPLE = Tool("sample", sample)


@each_tool
def test_every_tool_and_every_argument_is_described(tool):
    schema = tool.schema
    assert schema["name"] == tool.name
    assert len(schema["description"]) > 20 and "Arguments" not in schema["description"]
    parameters = schema["parameters"]
    assert parameters["type"] == "object" and parameters["additionalProperties"] is False
    assert set(parameters["required"]) <= set(parameters["properties"])
    for name, described in parameters["properties"].items():
        assert described["type"] in ("string", "integer", "number", "boolean"), name
        assert len(described["description"]) > 10, name
    json.dumps(schema)


def test_the_tools_are_those_documented():
    assert list(catalogue.TOOLS) == [
        "write_candidate", "edit_candidate", "read", "compile", "run_benchmark", "inspect_failure", "profile", "submit",
    ]  # fmt: skip
    assert [schema["name"] for schema in catalogue.schemas()] == list(catalogue.TOOLS)


def test_a_schema_follows_signature_and_docstring():
    schema = SAMPLE.schema
    assert schema["description"] == "Do something\nwith text."
    assert schema["parameters"]["required"] == ["text"]
    assert schema["parameters"]["properties"] == {
        "text": {"type": "string", "description": "What to do it with."},
        "count": {"type": "integer", "description": "How often."},
        "share": {"type": "number", "description": "How much: a number."},
        "mode": {"type": "string", "enum": ["a", "b"], "description": "Which way."},
        "on": {"type": "boolean", "description": "Whether."},
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"text": "x"}', "'x' 1 None a 0"),
        ('{"text": "x\\ny", "count": 3, "share": 0.5, "mode": "b", "on": true}', "'x\\ny' 3 0.5 b True"),
        ('{"text": "x", "share": 2}', "'x' 1 2 a 0"),
        ('{"text": "x", "share": null, "mode": null}', "'x' 1 None a 0"),
    ],
)
def test_good_arguments_arrive(arguments, text):
    assert SAMPLE.call(None, arguments).text == text


BAD = {
    '{"text": "x"': "sample: the arguments are not valid JSON (",
    "text=x": "sample: the arguments are not valid JSON (",
    "[" * 100_000: "sample: the arguments are not valid JSON (",
    '["x"]': "sample: the arguments must be a JSON object, not list.",
    "null": "sample: the arguments must be a JSON object, not NoneType.",
    "{}": "sample: the argument 'text' is missing.",
    "": "sample: the argument 'text' is missing.",
    '{"text": "x", "speed": 3}': "sample: no argument 'speed'; it takes text, count, share, mode, on.",
    '{"text": 3}': "sample: text must be of type string, not 3.",
    '{"text": null}': "sample: text must be of type string, not null.",
    '{"text": ["x"]}': 'sample: text must be of type string, not ["x"].',
    '{"text": "x", "count": "3"}': 'sample: count must be of type integer, not "3".',
    '{"text": "x", "count": 2.5}': "sample: count must be of type integer, not 2.5.",
    '{"text": "x", "count": true}': "sample: count must be of type integer, not true.",
    '{"text": "x", "share": true}': "sample: share must be of type number, not true.",
    '{"text": "x", "on": 1}': "sample: on must be of type boolean, not 1.",
    '{"text": "x", "mode": "c"}': "sample: mode must be one of a, b, not 'c'.",
    '{"text": "\\ud83d"}': "sample: the arguments hold half a surrogate pair",
}


@pytest.mark.parametrize(("arguments", "message"), BAD.items(), ids=[k[:24] for k in BAD])
def test_bad_arguments_give_one_clear_line(arguments, message):
    with pytest.raises(ToolError) as caught:
        SAMPLE.call(None, arguments)
    text = str(caught.value)
    assert text.startswith(message) and "\n" not in text and len(text) < 250


@each_tool
@pytest.mark.parametrize("arguments", ["{", "[]", '{"no_such_argument": 1}', '{"source": 1}', '{"what": {}}', ""])
def test_a_wrong_call_never_ends_the_run(tool, arguments, session):
    result = catalogue.call(session, tool.name, arguments)
    assert (result.ok, result.candidate, result.evaluation, result.submitted) == (False, None, None, False)
    assert result.text and "\n" not in result.text


def test_an_unknown_tool_is_answered_with_those_there_are(session):
    result = catalogue.call(session, "run_shell", "{}")
    assert not result.ok and "'run_shell'" in result.text and "run_benchmark" in result.text
