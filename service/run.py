"""One run from its configuration to its last event. Every door (CLI, sweeps, servers) comes through here."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from agent import models
from agent.loop import run_loop
from agent.models.base import Model
from agent.prompt import render, require_page
from harness import machine, roofline
from harness.errors import UsageError
from harness.types import Backend
from problems.catalogue import find, select_case, statement
from runs.events import Event, RunConfig
from runs.fold import Run
from runs.record import Record, new_run_id
from tools import catalogue
from tools.session import Session

if TYPE_CHECKING:
    from harness.evaluate import Sandbox


def run_one(
    config: RunConfig,
    *,
    root: Path,
    on_event: Callable[[Event], None],
    sandbox: Sandbox | None = None,
    model: Model | None = None,
) -> Run:
    """Run the loop; the record is `root / run.run_id`. A sandbox that is passed in must fit `config` and stays open.

    Raises UsageError or ProblemError for what cannot be (a name, the model, its price: before any process is started),
    HarnessError if the sandbox cannot be brought up. Once the loop runs, Ctrl-C and the harness's or the provider's
    failures are the run's `reason` instead.
    """
    entry = find(config.problem, config.suite)
    require_page(config.backend)
    headers = Path(os.environ.get(machine.KITTENS_VARIABLE) or "/nowhere", "include", "kittens.cuh")
    if config.backend is Backend.parallelkittens and not headers.is_file():
        raise UsageError(f"backend parallelkittens needs a ThunderKittens checkout: set {machine.KITTENS_VARIABLE}")
    case = select_case(entry, config.case)
    model = model or models.make(config.model)
    if config.budget.usd is not None and not model.priced():
        raise UsageError(f"the price of {model.name} is unknown, so --usd cannot be kept: limit --tokens or --steps")

    with ExitStack() as stack:
        if sandbox is None:
            from harness.evaluate import Sandbox

            sandbox = stack.enter_context(Sandbox(config.platform, config.world_size, isolation=config.isolation))
        work = sandbox.inspect(entry, case, config.dtype)
        topology = sandbox.topology()
        floor = roofline.floor(work, topology.devices[0], config.dtype)
        messages, prompts_hash = render(
            entry=entry,
            statement=statement(entry),
            case=case,
            world_size=config.world_size,
            dtype=config.dtype,
            topology=topology,
            budget=config.budget,
            target=config.target,
            backend=config.backend,
            check=config.check,
            tools=tuple(catalogue.TOOLS),
            work=work,
            sol_us=floor[0] if floor else None,
        )
        sandbox.warm_up()  # while the model thinks
        record = stack.enter_context(Record.create(root, new_run_id(entry.number, entry.name)))
        session = Session(
            sandbox=sandbox,
            entry=entry,
            case=case,
            dtype=config.dtype,
            backend=config.backend,
            protocol=config.protocol,
            collectives=config.collectives,
            check=config.check,
            trials=config.trials,
            traces_dir=record.path / "traces",
        )
        return run_loop(
            config,
            model,
            session,
            record,
            messages,
            on_event,
            prompts_hash=prompts_hash,
            toolbox=catalogue,
        )
