"""Scripted models for sweeps: folders with a trajectory per problem and sample.

`python -m tests.service.scripts FOLDER` writes those of the sweep in docs/results.md there and prints their names."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from problems.catalogue import find, statement

_EXAMPLES = Path(__file__).resolve().parents[2] / "prompts" / "examples"
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


EXAMPLES = {
    1: "p01_allreduce_twoshot", 2: "p02_allgather_copyengine", 8: "p08_alltoall_push", 13: "p13_gemm_allreduce",
    16: "p16_ring_gemm", 34: "p34_allgather_tma", 45: "p45_reducescatter_rmsnorm",
}  # fmt: skip
"""Problem -> worked example in CUDA."""


def write_examples(folder: Path) -> list[Path]:
    """Two scripted models, by the folders that `scripted:` names: `examples` writes worked examples, its second sample
    with a text first that does not compile; `nccl` writes the references as they are."""
    models = [folder / "examples", folder / "nccl"]
    for problem, example in EXAMPLES.items():
        for model, source in zip(models, (cuda_example(example), right(problem)), strict=True):
            solved = [turn(("write_candidate", {"source": source}), ("run_benchmark", {})), turn(("submit", {}))]
            broken = turn(("write_candidate", {"source": BROKEN}), ("compile", {}))
            write(model, f"p{problem:02d}", solved)
            if model.name == "examples":
                write(model, f"p{problem:02d}.2", [broken, *solved])
    return models


def cuda_example(name: str) -> str:
    return (_EXAMPLES / "cuda" / f"{name}.py").read_text(encoding="utf-8")


if __name__ == "__main__":
    print(",".join(f"scripted:{model}" for model in write_examples(Path(sys.argv[1]))))
