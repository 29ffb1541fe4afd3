"""Runs on hand-made answers, for what the MCP server does around them."""

import threading
from contextlib import contextmanager

from agent.external import External
from runs.record import Record
from tests.agent.test_loop import MESSAGES, FakeSession, Toolbox, speed, wrong
from tests.runs.factories import config


class Slow(FakeSession):
    """Measures when it is told to."""

    def __init__(self):
        super().__init__({"a": [wrong("a")], "b": [speed("b", 1.5)]})
        self.asked, self.go_on = threading.Semaphore(0), threading.Event()
        self.go_on.set()

    def evaluate(self):
        self.asked.release()
        while not self.go_on.wait(0.01):
            pass
        return super().evaluate()


class Place:
    """What a seat opens, and whether it is open."""

    def __init__(self, root, session, **changed):
        self.root, self.session, self.changed = root, session, changed
        self.agents, self.open, self.faults = [], False, []

    @contextmanager
    def __call__(self, agent):
        self.agents.append(agent)
        if self.faults:
            raise self.faults.pop()
        self.open = True
        try:
            with (
                Record.create(self.root, f"r{len(self.agents)}") as record,
                External.start(
                    config(model=f"external:{agent}", **self.changed), self.session, record, MESSAGES,
                    lambda event: None, prompts_hash="h", toolbox=Toolbox(),
                ) as run,
            ):  # fmt: skip
                yield run
        finally:
            self.open = False

    @property
    def record(self):
        return Record.list(self.root)[0]
