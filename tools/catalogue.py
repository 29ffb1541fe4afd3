"""The tools there are. A row here is all that a new tool file needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tools.base import Tool, ToolError, ToolResult
from tools.compile import compile_candidate
from tools.edit_candidate import edit_candidate
from tools.inspect_failure import inspect_failure
from tools.profile import profile
from tools.read import read
from tools.run_benchmark import run_benchmark
from tools.session import Session
from tools.submit import submit
from tools.write_candidate import write_candidate

MAX_TEXT = 20_000
"""Characters of one answer: a long candidate can still be read whole, a line of a megabyte cannot."""

TOOLS = {
    tool.name: tool
    for tool in (
        Tool("write_candidate", write_candidate),
        Tool("edit_candidate", edit_candidate),
        Tool("read", read),
        Tool("compile", compile_candidate),
        Tool("run_benchmark", run_benchmark),
        Tool("inspect_failure", inspect_failure),
        Tool("profile", profile),
        Tool("submit", submit),
    )
}


def schemas() -> list[dict[str, Any]]:
    """Name, description and parameters of every tool, in the form that chat APIs take."""
    return [tool.schema for tool in TOOLS.values()]


def call(session: Session, name: str, arguments: str) -> ToolResult:
    """Run a tool as a model called it. A wrong call is a result with `ok` false; HarnessError and BudgetEndedError pass
    through."""
    tool = TOOLS.get(name)
    if tool is None:
        return ToolResult(text=f"There is no tool {repr(name)[:80]}; there are {', '.join(TOOLS)}.", ok=False)
    try:
        result = tool.call(session, arguments)
    except ToolError as error:
        result = ToolResult(text=str(error), ok=False)
    if len(result.text) > MAX_TEXT:
        result = replace(result, text=f"{result.text[:MAX_TEXT]}\n... cut: {len(result.text)} characters in all")
    return result
