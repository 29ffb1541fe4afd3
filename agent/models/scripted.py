"""A model whose replies are written down per problem and sample: for sweeps in tests, demonstrations and benchmarks."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.models.bounds import Bounds
from agent.models.replay import Replay
from harness.errors import UsageError
from runs.messages import Message, Turn


class Scripted(Replay):
    """`scripted:FOLDER` or `scripted:FOLDER?think=SECONDS`: the turns of `FOLDER/pNN.K.jsonl` for sample K of problem
    NN, else of `pNN.jsonl`, else of `default.jsonl`, in the form that `Replay` reads. Each reply takes `think` seconds.
    """

    def __init__(self, given: str, problem: int | None, sample: int) -> None:
        """Raises UsageError if there is no file for that problem, or if it cannot be read."""
        folder, mark, think = given.partition("?think=")
        try:
            self._think_s = float(think) if mark else 0.0
        except ValueError:
            self._think_s = math.nan
        if not 0.0 <= self._think_s < math.inf:
            raise UsageError(f"scripted:{given}: think={think} is not a number of seconds")
        names = [f"p{problem:02d}.{sample}", f"p{problem:02d}"] if problem is not None else []
        paths = [Path(folder).expanduser() / f"{name}.jsonl" for name in (*names, "default")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise UsageError(f"scripted:{given} has none of {', '.join(path.name for path in paths)}")
        super().__init__(path)
        self.name = f"scripted:{given}"

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], bounds: Bounds | None = None) -> Turn:
        time.sleep(self._think_s)
        return super().reply(messages, tools, bounds)
