"""One run from its configuration to its last event. Every door (CLI, sweeps, servers) comes through here."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from agent import models, strategies
from agent.conversation import Conversation
from agent.loop import resume_loop, run_loop
from agent.models.base import Model, OnText
from agent.models.replay import Replay
from agent.prompt import render, require_page
from harness import machine, roofline
from harness.errors import UsageError
from harness.types import Backend, BuildReport, Evaluation
from problems.catalogue import find, select_case, statement
from runs.events import Event, LaneStarted, RunConfig, ToolReturned
from runs.fold import Run
from runs.record import Record, new_run_id
from tools import catalogue
from tools.session import Session

if TYPE_CHECKING:
    from harness.sandboxes import Access, SandboxLike


def run_one(
    config: RunConfig,
    *,
    root: Path,
    on_event: Callable[[Event], None],
    on_text: OnText | None = None,
    sandbox: SandboxLike | None = None,
    access: Access | None = None,
    model: Model | None = None,
) -> Run:
    """Run the loop; the record is `root / run.run_id`. A sandbox that is passed in must fit `config` and stays open;
    otherwise it is made where `config.sandbox` says, with that `access` (the environment's unless given).
    `on_text` gets replies while they are written, unless a model is passed in.

    Raises UsageError or ProblemError for what cannot be (a name, the model, its price: before any process is started),
    HarnessError if the sandbox cannot be brought up. Once the loop runs, Ctrl-C and the harness's or the provider's
    failures are the run's `reason` instead.
    """
    entry = find(config.problem, config.suite)
    case = select_case(entry, config.case)
    model = _model(config, model, on_text)
    if isinstance(model, Replay):
        on_event = model.watched(on_event)

    with ExitStack() as stack:
        sandbox = sandbox or stack.enter_context(_sandbox(config, access))
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
            budget=strategies.make(config.strategy).stated(config.budget),
            target=config.target,
            backend=config.backend,
            check=config.check,
            tools=tuple(catalogue.TOOLS),
            work=work,
            sol_us=floor[0] if floor else None,
        )
        sandbox.warm_up()  # while the model thinks
        record = stack.enter_context(Record.create(root, new_run_id(entry.number, entry.name)))
        return run_loop(
            config,
            model,
            _session(config, sandbox, record),
            record,
            messages,
            on_event,
            prompts_hash=prompts_hash,
            toolbox=catalogue,
        )


def resume_one(
    record: Record,
    *,
    on_event: Callable[[Event], None],
    on_text: OnText | None = None,
    sandbox: SandboxLike | None = None,
    where: str | None = None,
    access: Access | None = None,
    model: Model | None = None,
) -> Run:
    """Go on with a run whose process was killed, interrupted or failed: same record, same budget, nothing paid twice.
    `on_event` gets what happened so far first. Candidates are evaluated where they were, or else at `where`.

    Raises UsageError if it is still being written, has ended by itself, or cannot be run here any more; otherwise as
    `run_one`."""
    run = record.run()
    if run.status == "running":
        raise UsageError(f"run {record.run_id} is being written by another process")
    if run.reason is not None and run.reason != "interrupted" and not run.reason.startswith("error:"):
        raise UsageError(f"run {record.run_id} has ended ({run.reason}): there is nothing to go on with")
    config = run.config if where is None else run.config.model_copy(update={"sandbox": where})
    model = _model(config, model, on_text)
    events = list(record.events())
    if isinstance(model, Replay):
        heard = Conversation(events)
        model.skip(heard.replies, heard.judged)
        on_event = model.watched(on_event)
    with ExitStack() as stack:
        sandbox = sandbox or stack.enter_context(_sandbox(config, access))
        sandbox.warm_up()
        stack.enter_context(record)
        for event in events:
            on_event(event)
        session = _session(config, sandbox, record)
        for event in events:
            if isinstance(event, LaneStarted):
                session.begin_lane(record.candidate(event.candidate) if event.candidate else None)
            elif isinstance(event, ToolReturned) and event.candidate is not None:
                build, other = event.data.get("build"), event.data.get("other_case")
                session.restore(
                    record.candidate(event.candidate),
                    BuildReport.model_validate(build) if build else None,
                    [e for e in (event.evaluation, Evaluation.model_validate(other) if other else None) if e],
                )
        return resume_loop(model, session, record, on_event, toolbox=catalogue)


def _model(config: RunConfig, model: Model | None, on_text: OnText | None) -> Model:
    """Raises UsageError for what this machine or the model cannot do, before any process is started."""
    require_page(config.backend)
    strategies.make(config.strategy).check(config.budget)
    headers = Path(os.environ.get(machine.KITTENS_VARIABLE) or "/nowhere", "include", "kittens.cuh")
    if config.backend is Backend.parallelkittens and not config.sandbox and not headers.is_file():
        raise UsageError(f"backend parallelkittens needs a ThunderKittens checkout: set {machine.KITTENS_VARIABLE}")
    model = model or models.make(config.model, on_text)
    if config.budget.usd is not None and not model.priced():
        raise UsageError(f"the price of {model.name} is unknown, so --usd cannot be kept: limit --tokens or --steps")
    return model


def _sandbox(config: RunConfig, access: Access | None) -> SandboxLike:
    from harness.sandboxes import open_sandbox

    where = (config.sandbox, config.platform, config.world_size)
    return open_sandbox(*where, isolation=config.isolation, access=access)


def _session(config: RunConfig, sandbox: SandboxLike, record: Record) -> Session:
    entry = find(config.problem, config.suite)
    return Session(
        sandbox=sandbox,
        entry=entry,
        case=select_case(entry, config.case),
        dtype=config.dtype,
        backend=config.backend,
        protocol=config.protocol,
        collectives=config.collectives,
        check=config.check,
        trials=config.trials,
        traces_dir=record.path / "traces",
    )
