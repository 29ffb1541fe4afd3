"""Scripted models for sweeps: folders with a trajectory per problem and sample."""

import json
from collections.abc import Sequence
from pathlib import Path

from problems.catalogue import find, statement

BROKEN = "def solution(*args)\n    return args\n"
WRONG = "def solution(*args):\n    return args[0] * 0 + 7\n"


def right(problem: int) -> str:
    """A candidate that is right: the reference under the name that is asked for."""
    entry = find(problem)
    return f"{statement(entry)}\n\nsolution = {entry.function}\n"


def turn(*calls: tuple[str, dict], **more) -> dict:
    return {"tool_calls": [{"name": name, "arguments": given} for name, given in calls], **more}


def solves(problem: int) -> list[dict]:
    """A wrong text that is never run, then the right one."""
    return [
        turn(("write_candidate", {"source": BROKEN}), ("compile", {})),
        turn(("write_candidate", {"source": right(problem)}), ("run_benchmark", {})),
        turn(("submit", {})),
    ]


def fails(problem: int) -> list[dict]:
    return [turn(("write_candidate", {"source": WRONG}), ("run_benchmark", {})), {"text": "I give up."}]


def write(folder: Path, name: str, turns: Sequence[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))
