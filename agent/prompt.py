"""Renders the conversation's beginning from the templates in `prompts/`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import jinja2

from agent.budget import REPLIES
from harness.errors import UsageError
from harness.types import Backend, Check, DType, Topology
from problems.catalogue import Entry
from problems.spec import Case, Work
from runs.events import Budget, Target
from runs.messages import Message
from tools.pages import PROMPTS, examples, pages


def render(
    *,
    entry: Entry,
    statement: str,
    case: Case,
    world_size: int,
    dtype: DType,
    topology: Topology,
    budget: Budget,
    target: Target,
    backend: Backend,
    check: Check,
    tools: Sequence[str],
    steps: str = REPLIES,
    work: Work | None = None,
    sol_us: float | None = None,
    folder: Path = PROMPTS,
) -> tuple[tuple[Message, ...], str]:
    """System and task message, and a hash over every prompt file that they were made from or that a run can show.

    `statement` is the reference's source, `tools` their names, `steps` what the budget's are called, `work` and
    `sol_us` the roofline where it is known. Raises UsageError if a file is missing or a template does not fit.
    """
    page_name = f"backends/{backend}.md"
    sources = {name: _read(folder / name) for name in ("system.md.j2", "task.md.j2", page_name)}
    # Templates come from the sources that are hashed, so one that includes a file which is not fails.
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown for a model, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
    )
    readable = {"knowledge": pages(backend, folder), "examples": examples(backend, entry.number, folder)}
    names = entry.arguments
    facts = {
        "entry": entry,
        "updates": [f"`{names[i]}`" for i in entry.updates],
        "scratch": [f"`{names[i]}`" for i in entry.scratch],
        "statement": statement.strip("\n"),
        "case": case,
        "world_size": world_size,
        "dtype": dtype,
        "topology": topology,
        "budget": budget,
        "target": target,
        "backend": backend.value,
        "check": check,
        "page": sources[page_name].strip("\n"),
        "tools": tuple(tools),
        "steps": steps,
        "readable": {kind: tuple(texts) for kind, texts in readable.items()},
        "work": work,
        "sol_us": sol_us,
    }
    try:
        system, task = (environment.get_template(name).render(facts) for name in ("system.md.j2", "task.md.j2"))
    except jinja2.TemplateError as error:
        raise UsageError(f"a template in {folder} does not render: {error}") from error
    advice = {f"advice/{path.name}": _read(path) for path in sorted((folder / "advice").glob("*.md"))}
    shown = {f"{kind}/{name}": text for kind, texts in readable.items() for name, text in texts.items()}
    messages = (Message(role="system", text=system.strip()), Message(role="user", text=task.strip()))
    return messages, _hash(sources | shown | advice)


def folder_hash(folder: Path = PROMPTS) -> str:
    """Of every prompt file: what a sweep's plan notes, whose runs each have a `render` of their own."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".md", ".j2", ".py"))
    return _hash({str(path.relative_to(folder)): _read(path) for path in files})


def require_page(backend: Backend, folder: Path = PROMPTS) -> None:
    """Raises UsageError if no page tells a model how to write for `backend`."""
    there = sorted(path.stem for path in (folder / "backends").glob("*.md"))
    if backend not in there:
        raise UsageError(f"no prompt page for backend {backend}; there are {', '.join(there)}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"no prompt file {path}") from None


def _hash(sources: dict[str, str]) -> str:
    """16 hexadecimal digits over names and contents."""
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(f"{name}\0{len(sources[name])}\0{sources[name]}".encode())
    return digest.hexdigest()[:16]
