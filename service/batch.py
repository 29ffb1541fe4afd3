"""`ringsmith eval --batch`: does what the manifests of a folder ask for, as `harness.remote.batch` lays it out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import typer
from pydantic import ValidationError

from harness.allowance import Allowance
from harness.errors import UsageError
from harness.evaluate import Sandbox
from harness.remote import work
from harness.remote.batch import Answer, Item, answer, inside, manifest_path, result_path, trace_path
from harness.remote.files import write_whole
from harness.remote.messages import CompileJob, EvaluateJob, InspectJob, Job, PlainJob, ProfileJob, Reply, identity
from harness.types import Candidate, IsolationLevel, Limits, PlatformName, Request
from harness.wording import one_line
from problems.catalogue import Entry, find, select_case
from problems.spec import ProblemError
from service.candidates import REFERENCE, read_candidate
from service.options import Setup, resolve
from tools.compile import compiled_text
from tools.profile_text import profile_text
from tools.text import evaluation_text

_LOOK_S = 0.5
_STRICTNESS: dict[IsolationLevel | None, int] = {None: 0, "none": 0, "auto": 1, "strict": 2}
_Key = tuple[PlatformName, int, Limits]


def run_batch(folder: Path, isolation: IsolationLevel, *, accept_suites: bool, follow: bool, json: bool) -> int:
    """Returns the exit code: 0 all that was done now passed, 1 some candidate failed, 2 some item cannot be, 3 the
    harness failed at some, which the next call does again. Raises UsageError if the folder is none, somebody else is at
    work on it or, unless it is to `follow`, a manifest has a line that is none."""
    if not folder.is_dir():
        raise UsageError(f"no folder {folder}")
    inside(folder, "results")
    worst, told = 0, set[str]()
    with _alone(folder), _Boxes(isolation) as boxes:
        tried: set[str] = set()
        while True:
            items, wrong = _read(folder)
            if wrong and not follow:
                raise UsageError("; ".join(wrong[:5]))
            for line in wrong:
                if line not in told:
                    told.add(line)
                    typer.echo(f"warning: {line}", err=True)
            left = [item for item in items if item.id not in tried and not _done(folder, item)]
            if follow:
                left = [item for item in left if _arrived(folder, item)]
            for item in sorted(left, key=lambda item: _near(item, boxes.key)):
                tried.add(item.id)
                taken_back = _TakenBack(folder, item)
                done = _do(folder, item, boxes, isolation, accept_suites, Allowance(taken_back))
                if taken_back.ended:
                    typer.echo(f"{item.id}: taken back", err=True)
                    break
                write_whole(result_path(folder, item.id), done.model_dump_json().encode() + b"\n")
                worst = max(worst, _code(done.reply))
                typer.echo(done.model_dump_json() if json else f"{item.id}: {_told(done)}")
                if follow:
                    break  # somebody may have asked for something meanwhile
            if not left:
                if not follow:
                    return worst
                time.sleep(_LOOK_S)


class _Boxes:
    """The sandbox of the item that is done now; another kind ends it."""

    def __init__(self, isolation: IsolationLevel) -> None:
        self._isolation = isolation
        self._box: Sandbox | None = None
        self.key: _Key | None = None

    def __enter__(self) -> _Boxes:
        return self

    def __exit__(self, *_: object) -> None:
        if self._box is not None:
            self._box.close()

    def get(self, key: _Key) -> Sandbox:
        if self._box is None or key != self.key:
            self.__exit__()
            self._box, self.key = Sandbox(*key, isolation=self._isolation), key
        return self._box


class _TakenBack:
    """What ends an item: its manifest, written for it alone, was there and is no more."""

    def __init__(self, folder: Path, item: Item) -> None:
        self._manifest = manifest_path(folder, item.id)
        self._asked = self._manifest.exists()
        self._looked = time.monotonic()
        self.ended = False

    def __call__(self) -> str | None:
        if self._asked and time.monotonic() - self._looked > _LOOK_S:
            self._looked, self.ended = time.monotonic(), not self._manifest.exists()
        return "taken back" if self.ended else None


def _do(
    folder: Path, item: Item, boxes: _Boxes, isolation: IsolationLevel, accept_suites: bool, allowance: Allowance
) -> Answer:
    source = ""
    try:
        if item.identity is not None and item.identity != identity():
            raise UsageError(
                f"here is Ringsmith {identity()}, you run {item.identity}: results would not be comparable"
            )
        if _STRICTNESS[item.isolation] > _STRICTNESS[isolation]:
            raise UsageError(f"candidates are jailed here with --isolation {isolation}, not {item.isolation}")
        setup = resolve(item.platform, item.world_size, item.dtype, item.backend)
        job, source = _job(folder, item, setup, accept_suites)
    except ProblemError as error:
        reply = work.fault("problem", error)
    except UsageError as error:
        reply = work.fault("usage", error)
    else:
        box = boxes.get((setup.platform, setup.world_size, item.limits))
        with tempfile.TemporaryDirectory(prefix="ringsmith-batch-") as traces:
            reply = work.perform(box, job, Path(traces), lambda stage: None, allowance)
            if reply.profile is not None:
                write_whole(trace_path(folder, item.id), (Path(traces) / reply.profile.trace).read_bytes())
                named = reply.profile.model_copy(update={"trace": trace_path(folder, item.id).name})
                reply = reply.model_copy(update={"profile": named})
        reply = work.answer_with_suite(reply, item.suite)
    return Answer(id=item.id, text=_text(reply, source), reply=reply, identity=identity())


def _job(folder: Path, item: Item, setup: Setup, accept_suites: bool) -> tuple[Job, str]:
    """What is to be done, and the candidate's source. Raises UsageError or ProblemError."""
    if item.do in ("topology", "environment"):
        return PlainJob(do=item.do), ""
    suite = ""
    if item.suite:
        if not accept_suites:
            raise UsageError("problem files of the batch's folder run without a jail: say --accept-suites to run them")
        suite = str(inside(folder, item.suite))
    entry = None if item.do == "compile" and item.problem is None else _entry(item, suite)
    if item.do == "inspect" and entry is not None:
        return InspectJob(problem=entry.number, suite=suite, case=_case(entry, item), dtype=setup.dtype), ""
    if not _arrived(folder, item):
        raise UsageError(f"{item.file} is not (yet) the candidate that item {item.id} means")
    candidate = _candidate(folder, item, setup, entry)
    if item.do == "compile" or entry is None:
        return CompileJob(candidate=candidate), candidate.source
    request = Request(
        candidate=candidate, problem=entry.number, suite=suite, case=_case(entry, item), platform=setup.platform,
        world_size=setup.world_size, dtype=setup.dtype, protocol=item.protocol, check=item.check, trials=item.trials,
        soak=item.soak, timing=item.timing, collectives=item.collectives, limits=item.limits,
    )  # fmt: skip
    if item.do == "profile":
        return ProfileJob(request=request, kernel=item.kernel), candidate.source
    return EvaluateJob(request=request), candidate.source


def _entry(item: Item, suite: str) -> Entry:
    if item.problem is None:
        raise UsageError(f"item {item.id} does not say which problem")
    return find(item.problem, suite)


def _case(entry: Entry, item: Item) -> str:
    return select_case(entry, item.case or entry.default).name


def _candidate(folder: Path, item: Item, setup: Setup, entry: Entry | None) -> Candidate:
    if not item.file:
        raise UsageError(f"item {item.id} names no file")
    path = item.file if item.file == REFERENCE else str(inside(folder, item.file))
    return read_candidate(path, setup.backend, entry)


def _arrived(folder: Path, item: Item) -> bool:
    """Whether the candidate is there as it was meant: a folder is copied file by file."""
    if not item.candidate or item.backend is None:
        return True
    try:
        return read_candidate(str(inside(folder, item.file)), item.backend, None).hash == item.candidate
    except UsageError:
        return False


def _text(reply: Reply, source: str) -> str:
    """As the tools say it."""
    if reply.evaluation is not None:
        return evaluation_text(reply.evaluation, source)
    if reply.fault is not None:
        return reply.fault.message
    if reply.build is not None:
        return compiled_text(reply.build, source)
    if reply.profile is not None:
        return profile_text(reply.profile)
    if reply.topology is not None:
        return reply.topology.summary
    if reply.environment is not None:
        return reply.environment.model_dump_json()
    return ", ".join(f"{name} {value:g}" for name, value in (reply.work or {}).items())


def _told(done: Answer) -> str:
    fault = done.reply.fault
    prefix = f"{fault.kind}: " if fault is not None and fault.kind != "candidate" else ""
    return prefix + one_line(done.text.partition("\n")[0], 200)


def _code(reply: Reply) -> int:
    if reply.fault is not None:
        return {"usage": 2, "problem": 2, "candidate": 1}.get(reply.fault.kind, 3)
    failed = reply.build is not None and reply.build.verdict is not None
    return int(failed or (reply.evaluation is not None and not reply.evaluation.passed))


def _done(folder: Path, item: Item) -> bool:
    """Whether it needs not be done: what failed for reasons of the harness's is done again."""
    there = answer(folder, item.id)
    return there is not None and _code(there.reply) < 3


def _near(item: Item, key: _Key | None) -> tuple[bool, str, int, str]:
    """Items that one sandbox can do, one after another; first those of the one that is there."""
    own = (item.platform, item.world_size, item.limits)
    return own != key, item.platform or "", item.world_size or 0, item.limits.model_dump_json()


def _read(folder: Path) -> tuple[list[Item], list[str]]:
    """The items of all manifests, and what is wrong with other lines."""
    items: dict[str, Item] = {}
    wrong = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            wrong.append(f"{path.name}: {error}")
            continue
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                item = Item.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
                wrong.append(f"{path.name}:{number}: {one_line(said, 200)}")
                continue
            if items.setdefault(item.id, item) != item:
                wrong.append(f"{path.name}:{number}: the id {item.id} is taken by another item")
    return list(items.values()), wrong


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Raises UsageError if another process is at work on the folder."""
    try:  # a link could name any file: whoever fills the folder is not to write elsewhere
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UsageError(f"cannot lock {folder}: {error.strerror}") from None
    with open(lock, "w"):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another process is at work on {folder}") from None
        yield
    sys.stdout.flush()
