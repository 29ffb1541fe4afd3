"""What an agent sees: the run's tools; the task as a tool, a prompt and a resource; instructions that lead to it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import jinja2
from mcp import types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from harness.machine import harness_version
from problems.catalogue import find
from runs.events import RunConfig
from service.mcp.seat import NotOpenError, Seat, StoppedError
from tools import catalogue
from tools.pages import PROMPTS

TASK = "task"
URI = "ringsmith://task"
PROGRESS_S = 5.0
"""Between two notes on the progress of a call."""
READING = frozenset({"read", "inspect_failure"})
"""Tools that change nothing but the number of steps."""
GONE = "ringsmith.gone"
"""True in the scope of an HTTP request that nobody waits for any more."""
UNNAMED = "mcp"
"""The agent, where its client does not say what it is."""

_ABOUT_TASK = (
    "The task of this run: contract, reference, sizes, machine, budget, how you are judged; and what has been tried in "
    "this run so far. Call it first. It is free: no step, no budget."
)

_T = TypeVar("_T")
Context = Any
"""`ServerRequestContext`: what the SDK gives to a handler."""


def make(config: RunConfig, seat_of: Callable[[Context], Seat], agent: str = "") -> Server[Any]:
    """A server for runs of this configuration; `seat_of` finds the run of a request. `agent` names the agents in the
    records; empty: as their clients call themselves."""

    about = instructions(config)

    def named(context: Context) -> str:
        client = context.session.client_params
        return agent or agent_name(client.client_info.name if client else "")

    async def task(context: Context) -> str:
        """Raises MCPError where the run cannot be opened."""
        try:
            return await _followed(context, TASK, told(context))
        except (NotOpenError, StoppedError) as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None

    async def told(context: Context) -> str:
        """With the instructions, which not every client shows to its model."""
        return f"{about}\n\n{await seat_of(context).task(named(context))}"

    async def call_tool(context: Context, asked: types.CallToolRequestParams) -> types.CallToolResult:
        seat = seat_of(context)
        try:
            if asked.name == TASK:
                return _result(await _followed(context, TASK, told(context)), ok=True)
            call = seat.call(named(context), asked.name, asked.arguments or {})
            answer = await _followed(context, asked.name, call)
        except (NotOpenError, StoppedError) as error:
            return _result(str(error), ok=False)
        if context.request is not None and context.request.scope.get(GONE):
            seat.keep(asked.name, answer)
        return _result(answer.text, answer.ok)

    async def list_tools(context: Context, asked: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools())

    async def list_prompts(context: Context, asked: Any) -> types.ListPromptsResult:
        prompt = types.Prompt(name=TASK, title="Begin the run", description="The task, as the tool `task` tells it.")
        return types.ListPromptsResult(prompts=[prompt])

    async def get_prompt(context: Context, asked: types.GetPromptRequestParams) -> types.GetPromptResult:
        if asked.name != TASK:
            raise MCPError(types.INVALID_PARAMS, f"no prompt {asked.name!r}; there is {TASK}")
        text = types.TextContent(type="text", text=await task(context))
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=text)])

    async def list_resources(context: Context, asked: Any) -> types.ListResourcesResult:
        resource = types.Resource(name=TASK, uri=URI, description=_ABOUT_TASK, mime_type="text/markdown")
        return types.ListResourcesResult(resources=[resource])

    async def read_resource(context: Context, asked: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(asked.uri) != URI:
            raise MCPError(types.INVALID_PARAMS, f"no resource {asked.uri}; there is {URI}")
        text = types.TextResourceContents(uri=URI, mime_type="text/markdown", text=await task(context))
        return types.ReadResourceResult(contents=[text])

    return Server(
        "ringsmith",
        version=harness_version(),
        instructions=about,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def tools() -> list[types.Tool]:
    """`task`, and the tools that every model has."""
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    made = [types.Tool(name=TASK, description=_ABOUT_TASK, input_schema=nothing, annotations=_hints(reading=True))]
    for schema in catalogue.schemas():
        made.append(
            types.Tool(
                name=schema["name"],
                description=schema["description"],
                input_schema=schema["parameters"],
                annotations=_hints(schema["name"] in READING),
            )
        )
    return made


def instructions(config: RunConfig) -> str:
    """Short: clients show the beginning only, and the whole task needs a machine that has been measured, which is not
    held for a client that only looks what a server offers."""
    template = jinja2.Template(
        (PROMPTS / "mcp.md.j2").read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    entry = find(config.problem, config.suite)
    return template.render({**config.model_dump(mode="json"), "title": entry.title}).strip()


def agent_name(client: str) -> str:
    """What a client calls itself, as a part of a model's name."""
    return re.sub(r"[^\w.@/+-]+", "-", client).strip("-")[:60] or UNNAMED


async def _followed(context: Context, name: str, work: Awaitable[_T]) -> _T:
    """What `work` gives; a client that asked for it hears that it goes on, which also keeps its timeout away."""
    task, started = asyncio.ensure_future(work), asyncio.get_running_loop().time()
    try:
        while not (await asyncio.wait({task}, timeout=PROGRESS_S))[0]:
            seconds = asyncio.get_running_loop().time() - started
            await context.session.report_progress(seconds, message=f"{name}: {seconds:.0f} s")
        return task.result()
    finally:
        task.cancel()


def _hints(reading: bool) -> types.ToolAnnotations:
    return types.ToolAnnotations(read_only_hint=reading, destructive_hint=False, open_world_hint=False)


def _result(text: str, ok: bool) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=not ok)
