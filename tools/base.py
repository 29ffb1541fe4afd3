"""How a tool is made: a function whose signature and docstring are its schema.

Adding one takes a file and a row in `tools.catalogue.TOOLS`.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from harness.types import Candidate, Evaluation


class ToolError(Exception):
    """The call was wrong; the message tells the model what to do instead. Every other exception ends the run."""


@dataclass(frozen=True)
class ToolResult:
    """`text` goes to the model, everything else to the record."""

    text: str
    ok: bool = True
    candidate: Candidate | None = None
    """The candidate that the call wrote or measured."""
    evaluation: Evaluation | None = None
    data: dict[str, Any] = field(default_factory=dict)
    device_s: float = 0.0
    submitted: bool = False


@dataclass(frozen=True)
class Tool:
    name: str
    run: Callable[..., ToolResult]
    """`run(session, **arguments)`."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments in the form that chat APIs take: name, description, parameters."""
        summary, described = _parse_docstring(inspect.getdoc(self.run) or "")
        hints = get_type_hints(self.run)
        properties: dict[str, Any] = {}
        required: list[str] = []
        for name, parameter in list(inspect.signature(self.run).parameters.items())[1:]:
            properties[name] = {**_json_type(hints[name]), "description": described[name]}
            if parameter.default is inspect.Parameter.empty:
                required.append(name)
        return {
            "name": self.name,
            "description": summary,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            },
        }

    def call(self, session: Any, arguments: str) -> ToolResult:
        """Check the model's raw JSON arguments and run the tool. Raises ToolError if they do not fit the schema."""
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ToolError(f"{self.name}: the arguments are not valid JSON ({error}). Send one JSON object.") from None
        try:
            json.dumps(given, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ToolError(f"{self.name}: the arguments hold half a surrogate pair, which is not text.") from None
        if not isinstance(given, dict):
            raise ToolError(f"{self.name}: the arguments must be a JSON object, not {type(given).__name__}.")
        parameters = self.schema["parameters"]
        known = parameters["properties"]
        for name in given:
            if name not in known:
                raise ToolError(f"{self.name}: no argument {name!r}; it takes {', '.join(known) or 'none'}.")
        for name in parameters["required"]:
            if name not in given:
                raise ToolError(f"{self.name}: the argument {name!r} is missing.")
        # Models send null for an argument that they mean to leave out.
        given = {name: value for name, value in given.items() if value is not None or name in parameters["required"]}
        for name, value in given.items():
            _check(self.name, name, value, known[name])
        return self.run(session, **given)


def _parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its text and the lines `name: description` under `Arguments:`."""
    text, _, arguments = doc.partition("\nArguments:\n")
    described: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(arguments).splitlines():
        if match := re.match(r"(\w+): (.*)", line):
            name = match[1]
            described[name] = match[2].strip()
        elif name:
            described[name] += " " + line.strip()
    return text.strip(), described


_JSON_TYPES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _json_type(hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal:
        return {"type": "string", "enum": list(get_args(hint))}
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        return _json_type(inner)
    return {"type": _JSON_TYPES[hint]}


def _check(tool: str, name: str, value: Any, schema: dict[str, Any]) -> None:
    wanted = schema["type"]
    python: Any = {"string": str, "integer": int, "number": (int, float), "boolean": bool}[wanted]
    if not isinstance(value, python) or (isinstance(value, bool) and wanted != "boolean"):
        raise ToolError(f"{tool}: {name} must be of type {wanted}, not {json.dumps(value)[:80]}.")
    if "enum" in schema and value not in schema["enum"]:
        raise ToolError(f"{tool}: {name} must be one of {', '.join(schema['enum'])}, not {value!r}.")
