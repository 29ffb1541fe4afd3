"""Where a kernel crashed: the candidate is run once more with CUDA's core dumps on, and cuda-gdb names kernel and line.

Only after an error that the device reported, because that comes from no particular line on the host; a dump takes a
third of a second. Not always on: nobody has measured what that does to timing and profilers. No torch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import proc
from harness.code_text import source_lines
from harness.errors import SandboxError
from harness.pair import FailedError, Pair
from harness.platforms.cuda import cuda_home, wait_gone
from harness.ranks import RankSet
from harness.types import Finding, RankReport, Verdict

_DEVICE_ERROR = re.compile(
    r"illegal memory access|misaligned address|unspecified launch|illegal instruction|device-side assert|"
    r"invalid program counter|illegal address",
    re.I,
)
_CALLS = 3
_MEMORY_BYTES = 16 << 30
_DEBUGGER_S = 20.0
_DUMP = "core"
_EXCEPTION = re.compile(r"CUDA Exception: (?P<what>.+)")
_PLACE = re.compile(
    r"triggered at PC 0x[0-9a-f]+\s+(?P<kernel>.+?)\s+\((?P<file>[^\s():]+):(?P<line>\d+)"
    r"(?: in (?P<function>\S+) inlined from (?P<caller>[^\s():]+):(?P<caller_line>\d+))?"
)
_SIGNAL = re.compile(r"terminated with signal (?P<what>SIG\w+)")
_FOCUS = re.compile(
    r"^#0 +(?:0x[0-9a-f]+ in )?(?P<kernel>.+?)<<<.*?>>> .*? at (?P<file>[^\s():]+):(?P<line>\d+)"
    r"(?: in (?P<function>\S+) inlined from (?P<caller>[^\s():]+):(?P<caller_line>\d+))?",
    re.M,
)
"""Of a thread that the debugger looks at first."""
_THREAD = re.compile(r"Current focus set to .*?block (?P<block>\([\d,]+\)), thread (?P<thread>\([\d,]+\))")


@dataclass(frozen=True)
class Crash:
    """What a core dump says."""

    what: str
    """The driver's words, such as `Warp Illegal Address`."""
    kernel: str
    file: str
    line: int
    caller_line: int | None = None
    """In the candidate, if `file` is a header whose function was inlined there."""
    thread: str = ""
    """Block and thread, where the debugger tells."""
    exact: bool = True
    """Whether the line is where it happened, and not only where some thread was then."""


def from_device(ranks: tuple[RankReport, ...], summary: str) -> bool:
    """Whether this failure was a kernel's."""
    return any(_DEVICE_ERROR.search(text) for text in (summary, *(rank.message for rank in ranks)))


def locate(pair: Pair, load: Callable[[Pair], None]) -> tuple[Finding, ...]:
    """Findings from single calls on fresh inputs, in fresh ranks; none if they do not crash, or nobody can read what
    they leave. `load` makes ranks import the candidate. The former ranks must be gone; call under the lease."""
    debugger = _debugger()
    if debugger is None:
        return ()
    box = pair.box
    ranks: RankSet | None = None
    try:
        ranks = box.dumping_candidate(_DUMP)
        again = Pair(box, pair.request, pair.reference, ranks)
        again.ask_reference("attach", {"folder": str(ranks.exchange)}, "attaching the reference ranks")
        try:
            load(again)
            for number in range(_CALLS):
                again.give_inputs(0)
                limit = again.limits.call_s if number else again.limits.seconds_of_first_call(ranks.world_size)
                again.ask("call", {"slot": 0}, again.call_deadline(limit))
        except FailedError as failed:
            if failed.verdict is not Verdict.runtime_error:
                return ()
        dumps = sorted((ranks.scratch / "out").glob(f"{_DUMP}.*"), key=lambda path: int(path.suffix[1:]))
        crashes = [crash for dump in dumps if (crash := read(_inspect(debugger, dump))) is not None]
        return findings(crashes, len(dumps), ranks.world_size, pair.request.candidate.source)
    except (SandboxError, OSError, ValueError):  # a diagnosis that fails is none
        return ()
    finally:
        if ranks is not None:
            ranks.kill()
            wait_gone(ranks.pids)


def read(text: str) -> Crash | None:
    """From what cuda-gdb prints when it opens a dump."""
    exact = "triggered at PC" in text
    what = (_EXCEPTION if exact else _SIGNAL).search(text)
    place = (_PLACE if exact else _FOCUS).search(text)
    thread = _THREAD.search(text)
    if what is None or place is None:
        return None
    file, caller = Path(place["file"]).name, place["caller"]
    return Crash(
        what=what["what"].strip(),
        kernel=place["kernel"].removeprefix("void ").split("(", 1)[0],
        file=file,
        line=int(place["line"]),
        caller_line=int(place["caller_line"]) if caller and Path(caller).name == "candidate.py" else None,
        thread=f"block {thread['block']}, thread {thread['thread']}" if thread and exact else "",
        exact=exact,
    )


def findings(crashes: list[Crash], dumps: int, world_size: int, source: str) -> tuple[Finding, ...]:
    """One for each place. Ranks are not told apart: a dump is named after a process of the jail."""
    lines = source_lines(source)
    found: dict[tuple[str, str, int], Finding] = {}
    for crash in crashes:
        line = crash.line if crash.file == "candidate.py" else crash.caller_line
        text = f": `{lines[line - 1].strip()[:120]}`" if line is not None and 0 < line <= len(lines) else ""
        inside = "" if crash.file == "candidate.py" else f" (in {crash.file}, line {crash.line}, inlined there)"
        where = f"line {line}{text}{inside}" if line is not None else f"{crash.file}, line {crash.line}"
        how = _HOW.get(crash.what, crash.what.lower())
        found.setdefault(
            (crash.kernel, crash.what, crash.line),
            Finding(
                cause="crash in a kernel",
                text=f"kernel {crash.kernel} {how} {'at' if crash.exact else 'while a thread was at'} {where}"
                + (f"; {crash.thread}" if crash.thread else ""),
                evidence=f"core dump of a second run: {crash.what}; {dumps} of {world_size} ranks left a dump",
            ),
        )
    return tuple(found.values())


_HOW = {
    "Warp Illegal Address": "used an address that is not mapped",
    "Lane Illegal Address": "used an address that is not mapped",
    "Warp Misaligned Address": "used an address that is no multiple of the access's size",
    "Warp Out-of-range Address": "used shared or local memory beyond its end",
    "Warp Illegal Instruction": "ran an illegal instruction or trapped",
    "Warp Assert": "failed an assertion",
    "SIGTRAP": "trapped (__trap, or a barrier of torch that ran into its timeout)",
}


def _debugger() -> str | None:
    return shutil.which("cuda-gdb") or shutil.which("cuda-gdb", path=f"{cuda_home()}/bin:/usr/local/cuda/bin")


def _inspect(debugger: str, dump: Path) -> str:
    """What the debugger prints. Without scripts: an untrusted process wrote the dump. Some releases end with a fault of
    their own after the lines that count; all leave files where temporary ones go."""
    if dump.is_symlink() or not dump.is_file():
        return ""
    command = [debugger, "--batch", "-nx", "-iex", "set auto-load off", "-ex", f"target cudacore {dump}"]
    try:
        with tempfile.TemporaryDirectory(prefix="ringsmith-", ignore_cleanup_errors=True) as folder:
            run = subprocess.run(
                proc.reader(command, _MEMORY_BYTES), capture_output=True, text=True, errors="replace",
                timeout=_DEBUGGER_S, check=False,
                stdin=subprocess.DEVNULL, cwd="/", env={**os.environ, "TMPDIR": folder},
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout
