"""What the loop itself costs a step (`python -m tests.agent.overhead`): no model, no evaluation, a record that grows
and a conversation that is as long as a context holds.

Prints the median milliseconds of every fifty steps, the record's size, and the memory that the process came to.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from agent.loop import run_loop
from agent.models.openai import _to_items
from agent.models.replay import REPLAY_END
from runs.events import Budget
from runs.messages import Turn, Usage
from runs.record import Record
from tests.agent.test_loop import MESSAGES, FakeSession, Toolbox, say, write
from tests.runs.factories import config

STEPS, TEXT = 500, "y" * 100_000


class Model:
    name = "none"

    def __init__(self) -> None:
        self.asked_at: list[float] = []
        self.answered_at: list[float] = []

    def priced(self) -> bool:
        return True

    def reply(self, messages, tools) -> Turn:
        self.asked_at.append(time.perf_counter())
        number = len(self.asked_at)
        # As an adapter makes it: the whole conversation, no text of it the same object as before.
        request = {"input": [_copied(item) for message in messages for item in _to_items(message)], "tools": tools}
        usage = Usage(input_tokens=sum(len(message.text) for message in messages) // 4 + 25_000 * (len(messages) // 2))
        made = say(write(f"{number} {TEXT}"), request=request, usage=usage)
        turn = made if number <= STEPS else Turn(stop=REPLAY_END)
        self.answered_at.append(time.perf_counter())
        return turn


def _copied(item: dict[str, Any]) -> dict[str, Any]:
    return {name: (value + " ")[:-1] if isinstance(value, str) else value for name, value in item.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Record.create(Path(folder), "run") as record:
        model = Model()
        run_loop(
            config(budget=Budget(steps=None)), model, FakeSession(), record, MESSAGES, lambda event: None,
            prompts_hash="h", toolbox=Toolbox(),
        )  # fmt: skip
        took = [(b - a) * 1e3 for a, b in zip(model.answered_at, model.asked_at[1:], strict=False)]
        size = (record.path / "events.jsonl").stat().st_size
    print("ms a step:", ", ".join(f"{median(took[i : i + 50]):.1f}" for i in range(0, STEPS, 50)))
    print(f"record {size / 1e6:.0f} MB; memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
