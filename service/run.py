"""One run from its configuration to its last event. Every door (CLI, sweeps, servers) comes through here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agent import external, models, strategies
from agent.budget import CALLS, REPLIES
from agent.cap import Cap
from agent.conversation import Conversation
from agent.external import External
from agent.loop import resume_loop, run_loop
from agent.models.base import Model, OnText, require_price
from agent.models.replay import Replay
from agent.prompt import render, require_page
from harness import machine, platforms, roofline
from harness.errors import UsageError
from harness.types import Backend, BuildReport, Evaluation
from problems.catalogue import find, select_case, statement
from runs.events import Event, LaneStarted, PersonActed, RunConfig, ToolReturned
from runs.fold import Run
from runs.messages import Message
from runs.record import Record, new_run_id
from tools import catalogue
from tools.session import Session

if TYPE_CHECKING:
    from harness.evaluate import Evaluator
    from harness.sandboxes import Access


def run_one(
    config: RunConfig,
    *,
    root: Path,
    on_event: Callable[[Event], None],
    on_text: OnText | None = None,
    sandbox: Evaluator | None = None,
    access: Access | None = None,
    model: Model | None = None,
    cap: Cap | None = None,
    run_id: str | None = None,
) -> Run:
    """Run the loop; the record is `root / run.run_id`. A sandbox that is passed in must fit `config` and stays open;
    otherwise it is made where `config.sandbox` says, with that `access` (the environment's unless given).
    `on_text` gets replies while they are written, unless a model is passed in.
    Runs in several threads may share a `cap`, each with a sandbox of its own.

    Raises UsageError or ProblemError for what cannot be (a name, the model, its price: before any process is started),
    HarnessError if the sandbox cannot be brought up. Once the loop runs, Ctrl-C and the harness's or the provider's
    failures are the run's `reason` instead.
    """
    select_case(find(config.problem, config.suite), config.case)
    model = _model(config, model, on_text, cap)
    if isinstance(model, Replay):
        on_event = model.watched(on_event)
    with ExitStack() as stack:
        session, record, messages, prompts_hash = _prepared(config, root, sandbox, access, stack, run_id)
        return run_loop(
            config, model, session, record, messages, on_event, prompts_hash=prompts_hash, toolbox=catalogue, cap=cap
        )


def check(config: RunConfig) -> None:
    """Raises what `run_one` would before any process is started, so that a door can refuse a run at once."""
    select_case(find(config.problem, config.suite), config.case)
    if not config.sandbox:
        platforms.get(config.platform).check(config.world_size)
    _model(config, None, None, None)


def resume_one(
    record: Record,
    *,
    on_event: Callable[[Event], None],
    on_text: OnText | None = None,
    sandbox: Evaluator | None = None,
    where: str | None = None,
    access: Access | None = None,
    model: Model | None = None,
    cap: Cap | None = None,
) -> Run:
    """Go on with a run whose process was killed, interrupted or failed: same record, same budget, nothing paid twice.
    `on_event` gets what happened so far first. Candidates are evaluated where they were, or else at `where`.

    Raises UsageError if it is still being written, has ended by itself, or cannot be run here any more; otherwise as
    `run_one`."""
    config, events = _resumable(record, where)
    model = _model(config, model, on_text, cap)
    if isinstance(model, Replay):
        heard = Conversation(events)
        model.skip(heard.replies, heard.judged)
        on_event = model.watched(on_event)
    with ExitStack() as stack:
        session = _restored(config, events, record, on_event, sandbox, access, stack)
        return resume_loop(model, session, record, on_event, toolbox=catalogue, cap=cap)


@contextmanager
def open_external(
    config: RunConfig,
    *,
    root: Path,
    on_event: Callable[[Event], None],
    sandbox: Evaluator | None = None,
    access: Access | None = None,
) -> Iterator[External]:
    """A run that an agent from outside leads (`config.model` is `external:NAME`): it calls, we record, limit and grade.
    The run ends with the block. Otherwise as `run_one`; on_event is called in the thread of the call."""
    select_case(find(config.problem, config.suite), config.case)
    _require(config)
    external.check(config)
    with ExitStack() as stack:
        session, record, messages, prompts_hash = _prepared(config, root, sandbox, access, stack)
        yield stack.enter_context(
            External.start(config, session, record, messages, on_event, prompts_hash=prompts_hash, toolbox=catalogue)
        )


@contextmanager
def reopen_external(
    record: Record,
    *,
    on_event: Callable[[Event], None],
    sandbox: Evaluator | None = None,
    where: str | None = None,
    access: Access | None = None,
) -> Iterator[External]:
    """Go on with such a run, as `resume_one`."""
    config, events = _resumable(record, where)
    _require(config)
    external.check(config)
    with ExitStack() as stack:
        session = _restored(config, events, record, on_event, sandbox, access, stack)
        yield stack.enter_context(External.resume(session, record, on_event, toolbox=catalogue))


def _prepared(
    config: RunConfig,
    root: Path,
    sandbox: Evaluator | None,
    access: Access | None,
    stack: ExitStack,
    run_id: str | None = None,
) -> tuple[Session, Record, tuple[Message, ...], str]:
    """What a new run needs: session, record, first messages and their prompts' hash. `stack` closes it."""
    entry = find(config.problem, config.suite)
    case = select_case(entry, config.case)
    sandbox = sandbox or _sandbox(config, access, stack)
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
        steps=CALLS if config.model.startswith(external.PREFIX) else REPLIES,
        work=work,
        sol_us=floor[0] if floor else None,
    )
    sandbox.warm_up()  # while the model thinks
    record = stack.enter_context(Record.create(root, run_id or new_run_id(entry.number, entry.name)))
    return _session(config, sandbox, record), record, messages, prompts_hash


def _resumable(record: Record, where: str | None) -> tuple[RunConfig, list[Event]]:
    """Raises UsageError for a run that is still being written, or that ended by itself."""
    if record.is_being_written():
        raise UsageError(f"run {record.run_id} is being written by another process")
    if (ended := record.finished()) and ended.final:
        raise UsageError(f"run {record.run_id} has ended ({ended.reason}): there is nothing to go on with")
    config = record.started().config
    return config if where is None else config.model_copy(update={"sandbox": where}), list(record.events())


def _restored(
    config: RunConfig,
    events: list[Event],
    record: Record,
    on_event: Callable[[Event], None],
    sandbox: Evaluator | None,
    access: Access | None,
    stack: ExitStack,
) -> Session:
    """The session as an earlier process left it. `on_event` gets what happened so far."""
    sandbox = sandbox or _sandbox(config, access, stack)
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
        elif isinstance(event, PersonActed) and event.candidate is not None:
            session.write(record.candidate(event.candidate).source)
    return session


def _require(config: RunConfig) -> None:
    """Raises UsageError for what this machine cannot do, before any process is started."""
    require_page(config.backend)
    strategies.make(config.strategy).check(config.budget)
    headers = Path(os.environ.get(machine.KITTENS_VARIABLE) or "/nowhere", "include", "kittens.cuh")
    if config.backend is Backend.parallelkittens and not config.sandbox and not headers.is_file():
        raise UsageError(f"backend parallelkittens needs a ThunderKittens checkout: set {machine.KITTENS_VARIABLE}")


def _model(config: RunConfig, model: Model | None, on_text: OnText | None, cap: Cap | None) -> Model:
    """Raises UsageError for what this machine or the model cannot do, before any process is started."""
    _require(config)
    if config.model.startswith(external.PREFIX):
        raise UsageError(f"{config.model} calls the tools itself: such a run cannot be led by the loop")
    model = model or models.make(config.model, on_text, problem=config.problem, sample=config.sample)
    require_price(model, config.budget.usd, cap.limits.usd if cap else None)
    return model


def _sandbox(config: RunConfig, access: Access | None, stack: ExitStack) -> Evaluator:
    from harness.sandboxes import open_sandbox

    where = (config.sandbox, config.platform, config.world_size)
    sandbox = open_sandbox(*where, isolation=config.isolation, access=access)
    stack.callback(sandbox.close)
    return sandbox


def _session(config: RunConfig, sandbox: Evaluator, record: Record) -> Session:
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
        timing=config.timing,
    )
