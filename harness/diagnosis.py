"""From what the ranks did to a verdict and a line that says why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.outcomes import Frame, Outcome, RankOutcome, parse_stack
from harness.progress import Phase
from harness.types import Mismatch, RankReport, Stage, Verdict

_API = {"NameError", "AttributeError", "ImportError", "NoSolutionError", "KitError"}
_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "std::bad_alloc")
_SIGNATURE = ("argument", "takes", "positional", "keyword")
_CANDIDATE = "candidate.py"
_BLOCKED = 0.02
"""A rank that uses less of a processor is blocked, however busy the machine is."""
COMPILERS = {"BuildError", "CompilationError"}
"""Exceptions whose text is a compiler's output: kit's and Triton's."""


def classify_error(error: dict[str, Any]) -> Verdict:
    """The verdict for an exception that a rank reported (see `harness.rank.describe_error`)."""
    bases, message = set(error["bases"]), error["message"].lower()
    if "PolicyError" in bases:
        return Verdict.policy
    if bases & {*COMPILERS, "SyntaxError"}:
        return Verdict.compile_error
    if bases & {"OutOfMemoryError", "MemoryError"} or any(text in message for text in _MEMORY):
        return Verdict.out_of_memory
    if bases & _API or ("TypeError" in bases and any(word in message for word in _SIGNATURE)):
        return Verdict.api_error
    return Verdict.runtime_error


def judge_failure(
    outcome: Outcome, stage: Stage, logs: list[str], busy: Sequence[bool] = ()
) -> tuple[Verdict, str, tuple[RankReport, ...]]:
    """Verdict, one-line reason and per-rank reports of a request that did not succeed on every rank. `busy`: whether
    each rank's GPU was at work just now, where that is known."""
    ranks = outcome.ranks
    reports = tuple(_report(r, stage, logs[r.rank], busy[r.rank] if busy else None) for r in ranks)
    kind, guilty = _guilty(ranks)
    first = guilty[0]
    who = name_ranks([r.rank for r in guilty], len(ranks))
    if kind == "error":
        assert first.error is not None
        # A compiler's message names its own line; the Python line is only where the build was asked for.
        named = first.error["line"] and "BuildError" not in first.error["bases"]
        line = f" (line {first.error['line']})" if named else ""
        return classify_error(first.error), f"{who}: {_error_line(first.error)}{line}", reports
    if kind == "garbled":
        return Verdict.integrity, f"{who}: what came is no answer to the request, forged or written over", reports
    if kind == "exit":
        return Verdict.runtime_error, f"{who} ended the process while {_doing(first)}: {first.exit}", reports
    return (*_judge_silence(ranks, guilty, stage), reports)


def _guilty(ranks: list[RankOutcome]) -> tuple[str, list[RankOutcome]]:
    """`garbled`, `error`, `exit` or `silent`, and the ranks it is true of. An error says more than a death and a death
    more than silence, which is usually its consequence; but an error about a lost connection is itself the consequence
    of a death."""
    lost = [r for r in ranks if r.error is not None and lost_peer(r.error["message"])]
    own = [r for r in ranks if r.error is not None and r not in lost]
    dead = [r for r in ranks if r.exit]
    silent = [r for r in ranks if r.silent]
    garbled = [r for r in ranks if r.garbled]
    for kind, guilty in (("garbled", garbled), ("error", own), ("exit", dead), ("error", lost), ("silent", silent)):
        if guilty:
            return kind, guilty
    raise AssertionError("judge_failure was called on a success")


def lost_peer(message: str) -> bool:
    """Whether an error is about a connection that another rank's end has broken."""
    message = message.lower()
    return "connection" in message and any(word in message for word in ("closed", "reset", "refused", "broken"))


def _judge_silence(ranks: list[RankOutcome], silent: list[RankOutcome], stage: Stage) -> tuple[Verdict, str]:
    where = "; ".join(f"rank {r.rank} {_doing(r)}{_at(r)}" for r in silent)
    if any(r.words is not None and r.words.phase is Phase.building for r in silent):
        return Verdict.timeout, f"compilation did not end: {where}"
    if stage in (Stage.build, Stage.load):
        return Verdict.timeout, f"importing the candidate did not end: {where}"
    # A rank whose innermost Python frame is the candidate's own code is computing, unless it uses no processor: then it
    # is in a call that is not Python's. One inside a library call, a kit function or a device synchronisation may be
    # waiting for another rank.
    computing = any(r.busy > _BLOCKED for r in silent)
    if len(silent) == len(ranks) and computing and all(_in_own_code(r) for r in silent):
        return Verdict.timeout, f"every rank is still running its own Python code: {where}"
    done = [r.rank for r in ranks if r.ok]
    others = f"; {name_ranks(done, len(ranks))} finished" if done else ""
    return Verdict.deadlock, f"no progress: {where}{others}"


def _in_own_code(rank: RankOutcome) -> bool:
    return bool(rank.stack) and Path(rank.stack[0].file).name == _CANDIDATE


def candidate_line(stack: tuple[Frame, ...]) -> int | None:
    """Line of the candidate nearest to the innermost frame."""
    return next((frame.line for frame in stack if Path(frame.file).name == _CANDIDATE), None)


def _line(rank: RankOutcome) -> int | None:
    """Where a silent rank is: its Python line, or, once `solution` has returned, where it last called a library."""
    line = candidate_line(rank.stack)
    if line is None and rank.words is not None and rank.words.phase is Phase.draining:
        return rank.words.line or None
    return line


def _at(rank: RankOutcome) -> str:
    if (line := candidate_line(rank.stack)) is None:
        return f" (last launch at line {last})" if (last := _line(rank)) else ""
    inner = rank.stack[0]
    where = "" if _in_own_code(rank) else f", in {Path(inner.file).name} {inner.function}"
    return f" at line {line}{where}"


def _doing(rank: RankOutcome) -> str:
    words = rank.words
    if words is None:
        return "running"
    return {
        Phase.idle: "idle",
        Phase.loading: "importing the candidate",
        Phase.building: "compiling",
        Phase.calling: f"inside call {words.calls}",
        Phase.draining: f"waiting for the device to finish call {words.calls}",
    }[words.phase]


def _report(rank: RankOutcome, stage: Stage, log: str, busy: bool | None = None) -> RankReport:
    error, line, stack = rank.error, None, ""
    if error is not None:
        message, line, stack = _error_line(error), error["line"], error["stack"]
    elif rank.silent:
        message, line, stack = f"no progress while {_doing(rank)}", _line(rank), _stack_text(rank.stack)
        if busy is not None:
            message += "; its GPU is running a kernel" if busy else "; its GPU is idle"
    elif rank.exit:
        message = f"ended while {_doing(rank)}"
        log, _, dump = log.partition("Fatal Python error")
        if dump:  # faulthandler's words at a fatal signal: the stack is for `stack`, the list of modules for nobody
            frames = parse_stack(dump)
            line, stack = candidate_line(frames), _stack_text(frames)
            log += f"Fatal Python error{dump.splitlines()[0]}"
    else:
        message = ""
    return RankReport(
        rank=rank.rank,
        ok=rank.ok,
        stage=stage,
        calls_completed=rank.words.completed if rank.words else 0,
        message=message,
        line=line,
        stack=stack,
        exit=rank.exit,
        stderr=log,
    )


def _stack_text(frames: tuple[Frame, ...]) -> str:
    """A stack with the innermost call last, without the harness's own frames."""
    shown = [f for f in reversed(frames) if not _is_harness(f)]
    return "".join(f"{Path(f.file).name}:{f.line} in {f.function}\n" for f in shown)


def _is_harness(frame: Frame) -> bool:
    """Frames that say nothing to the candidate's author; kit's are kept: the candidate called them."""
    path = Path(frame.file)
    return frame.file.startswith("<frozen") or (path.parent.name == "harness" and path.name != "kit.py")


def _error_line(error: dict[str, Any]) -> str:
    first = next((text for text in error["message"].splitlines() if text.strip()), "")
    if "BuildError" in error["bases"]:
        wrong = [text for text in error["message"].splitlines() if "error" in text.lower()]
        return f"compiler: {(wrong[0] if wrong else first).strip()}"
    if "CompilationError" in error["bases"]:  # Triton shows the kernel first, and says at last what is wrong
        return f"Triton: {error['message'].strip().splitlines()[-1].strip()}" if first else error["type"]
    if "PolicyError" in error["bases"]:
        return first.strip()
    return f"{error['type']}: {first.strip()}" if first else error["type"]


def judge_mismatches(found: list[list[Mismatch]]) -> str:
    """One line on which ranks are wrong and how, from each rank's mismatches."""
    wrong = [rank for rank, mismatches in enumerate(found) if mismatches]
    worst = max((m for rank in found for m in rank), key=lambda m: (m.wrong, m.rms_error))
    if worst.wrong:
        share = f"{worst.wrong / worst.total:.1%}"
        how = f"{worst.wrong} of {worst.total} elements of {worst.output} wrong ({share})"
        if len(wrong) > 1:
            how = f"up to {worst.wrong} of {worst.total} elements of {worst.output} wrong on a rank ({share})"
        if worst.nonfinite:
            how += f", {worst.nonfinite} of them NaN or infinite"
        largest = max((m for rank in found for m in rank if m.wrong), key=lambda m: m.max_error)
        where = f" in {largest.output}" if largest.output != worst.output else ""
        how += f"; largest error {largest.max_error:.3g}{where}, allowed {largest.max_allowed:.3g}"
    else:
        where = f"in {worst.rows_wrong} rows of" if worst.rows_wrong else "everywhere in"
        how = (
            f"precision lost {where} {worst.output}: RMS error {worst.rms_error:.3g}, "
            f"allowed {worst.rms_allowed:.3g}, though no single element is out of bounds"
        )
    return f"{name_ranks(wrong, len(found))}: {how}"


def near(found: list[list[Mismatch]]) -> float | None:
    """By how much the errors of all ranks are larger than what is allowed, if by so little that they come from
    arithmetic and not from other data; else None."""
    all_of_them = [mismatch for rank in found for mismatch in rank]
    if any(m.nonfinite or not m.max_allowed or not m.rms_allowed for m in all_of_them):
        return None
    # Where single elements are out of bounds, many that are wrong by as little make for a large RMS.
    most = max(m.max_error / m.max_allowed if m.wrong else m.rms_error / m.rms_allowed for m in all_of_them)
    return most if most <= NEAR else None


def judge_likeness(names: Sequence[str], likeness: list[list[tuple[bool, float]]]) -> tuple[str, int | None]:
    """What wrong outputs are like, as text, and which of the named inputs they answer as a whole on every wrong rank.
    `likeness[i][rank]` = (whole, share of the wrong elements) for the i-th of `names`."""
    for i, ranks in enumerate(likeness):
        if all(whole for whole, _ in ranks):
            return f"; the whole output is the right one for {names[i]}", i
    for name, ranks in zip(names, likeness, strict=True):
        if min(share for _, share in ranks) >= _STALE:
            how = "overtaken" if name == AFTER else "stale"
            return f"; {how}: the wrong values are right for {name}", None
    means = [sum(share for _, share in ranks) / len(ranks) for ranks in likeness]
    if means and max(means) >= _TORN:
        like = names[means.index(max(means))]
        return f"; torn: {max(means):.0%} of the wrong values are right for {like}, the others for neither", None
    return "; the wrong values are not those of any other call: torn, or never written" if names else "", None


_STALE, _TORN = 0.98, 0.1
NEAR = 2.0
"""Errors of so many times what is allowed come from arithmetic."""
AFTER = "the call after"
"""Name of the inputs that a rank which was overtaken sees too early."""
EARLY = (
    "these inputs before work that was ahead of the call on the current stream had written them: work on another "
    "stream has to wait for that first (`side.wait_stream(torch.cuda.current_stream())`)"
)
"""Name of the inputs that a stream sees which has not waited."""


def name_ranks(numbers: Sequence[int], world_size: int = 0) -> str:
    """`rank 1`, `ranks 0, 2`; `all ranks` if there are no others."""
    if len(numbers) == world_size and world_size > 1:
        return "all ranks"
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))
