"""Compiles what torch's extension builder has laid out: with a small set of headers first, with torch's own if need be.

torch writes sources and `build.ninja`; this runs the commands. Each source is at the same time compiled with the small
set (`slim_headers.py`) and checked with a still smaller one, without pybind11. An error that the check finds and that
is certain (`certainty.py`) is the answer, seconds after the start. A source that fails with the small set for any
other reason is compiled again by torch's own command, and what that says counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import built, cache, certainty, compiler, slim_headers
from harness.certainty import Headers


class CompileFailedError(Exception):
    """The text is the compilers' output."""


@dataclass(frozen=True)
class Unit:
    """One source and torch's command for it."""

    identity: str
    """Names what is not in text and command: headers, compilers."""
    source: Path
    command: tuple[str, ...]
    text: str
    slim_flags: tuple[str, ...]
    complete: bool
    """Whether what compiles with the small set means the same as with all headers."""

    @property
    def object(self) -> str:
        return self.command[self.command.index("-o") + 1]

    def variant(
        self, phase: Sequence[str], output: str, flags: Sequence[str] = (), source: Path | None = None
    ) -> list[str]:
        """The command up to another phase, with `flags` before its own."""
        words = list(self.command)
        for option, length in (("-MD", 1), ("-MMD", 1), ("-MF", 2), ("-o", 2), ("-c", 1)):
            if option in words:
                at = words.index(option)
                del words[at : at + length]
        words = [str(source) if source and w == str(self.source) else w for w in words]
        return [words[0], *flags, *words[1:], *phase, "-o", output]


def build(folder: Path, torch_include: Path, identity: str, *, slim: bool) -> None:
    """Compile and link in `folder`, as `build.ninja` there says. Raises CompileFailedError.

    `identity` names what is in neither sources nor commands: headers and compilers."""
    units = [_unit(folder, entry, torch_include, identity) for entry in _commands(folder, "compile", "cuda_compile")]
    links = [shlex.split(entry["command"]) for entry in _commands(folder, "link")]
    with ThreadPoolExecutor(3 * len(units)) as pool, contextlib.closing(_Processes(folder)) as processes:
        objects: set[Future[Any]] = {
            pool.submit(_compile, processes, unit, slim=slim and unit.complete) for unit in units
        }
        checks: set[Future[Any]] = {pool.submit(_check, processes, unit) for unit in units if slim and unit.text}
        # Wanted if a check fails; cached, so only the first build with these includes pays for it.
        checks |= {pool.submit(_headers, processes, unit, []) for unit in units if slim and unit.text}
        for done in as_completed(objects | checks):
            done.result()
            objects.discard(done)
            if not objects:
                break  # everything compiles; the checks have nothing left to find
    with contextlib.closing(_Processes(folder)) as processes:
        for command in links:
            _run(processes, command)


def _commands(folder: Path, *rules: str) -> list[dict[str, str]]:
    done = subprocess.run(["ninja", "-t", "compdb", *rules], cwd=folder, capture_output=True, text=True, check=True)
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def _unit(folder: Path, entry: dict[str, str], torch_include: Path, identity: str) -> Unit:
    source, command = Path(entry["file"]), tuple(shlex.split(entry["command"]))
    text = source.read_text(encoding="utf-8")
    # Headers of the candidate's own may use functions that its source does not name.
    foreign = any(word.startswith(("-I", "-include", "--pre-include")) for word in command[1:])
    if not foreign and _NO_CODE.fullmatch(text):
        text = ""
        source.write_text("// nothing but torch's header\n", encoding="utf-8")
    generated = folder / f"headers_{source.stem}"
    generated.mkdir(exist_ok=True)
    complete = slim_headers.write(generated, text, torch_include)
    flags = ("-isystem", str(slim_headers.FOLDER), "-isystem", str(generated), "-DAT_PER_OPERATOR_HEADERS")
    return Unit(identity, source, command, text, flags, complete and not foreign)


# What compile_cuda_extension leaves of the C++ source: 20 s for nothing.
_NO_CODE = re.compile(r"(?:\s*#(?:include <torch/extension\.h>|line [^\n]*)\n?)*\s*")


class _Processes:
    """Compilers at work in one folder; `close` ends them with all that they started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[str]] = []
        self._closed = False

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Exit status and output; nothing is started once it is closed."""
        return compiler.twice_if_killed(lambda: self._run(command))

    def _run(self, command: Sequence[str]) -> tuple[int, str]:
        with self._lock:
            if self._closed:
                return -1, ""
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**os.environ, "LC_ALL": "C"},  # English with plain quotes: certainty.py reads it
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.append(process)
        output, _ = process.communicate()
        with self._lock:
            self._running.remove(process)
        return process.returncode, output

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _compile(processes: _Processes, unit: Unit, *, slim: bool) -> None:
    """The unit's object, with the small set of headers or with all."""
    keep = built.keep_ptx(unit.source.with_name(f"ptx_{unit.source.stem}")) if unit.source.suffix == ".cu" else []
    if slim:
        # The check's answer is wanted first where cores are few.
        code, output = processes.run(["nice", *unit.variant(["-c"], unit.object, unit.slim_flags), *keep])
        if code == 0:
            return
        if _only_assembler(output):
            raise CompileFailedError(output)
    _run(processes, [*unit.command, *keep])


def _run(processes: _Processes, command: Sequence[str]) -> None:
    code, output = processes.run(command)
    if code:
        raise CompileFailedError(output)


def _check(processes: _Processes, unit: Unit) -> None:
    """Raises CompileFailedError for an error that is certain."""
    flags = ["-DRINGSMITH_CHECK", *unit.slim_flags]
    code, output = processes.run(unit.variant([_FRONT_END[unit.source.suffix]], f"{unit.source.stem}.check", flags))
    if code <= 0:
        return  # nothing found, or ended by `close`
    if _only_assembler(output):
        raise CompileFailedError(output)
    errors = certainty.errors(output)
    if not errors or errors[0].line_in(unit.text, str(unit.source)) is None:
        return
    if (full := _headers(processes, unit, [])) is None:
        return
    certain: list[str] = []
    for error in errors:
        if not certainty.is_certain(error, unit.text, str(unit.source), full, lambda: _headers(processes, unit, flags)):
            break  # and what follows may be its consequence
        certain.append(error.block)
    if certain:
        raise CompileFailedError("\n\n".join(certain))


# -cubin does not translate host code, but reads it.
_FRONT_END = {".cu": "-cubin", ".cpp": "-fsyntax-only"}


def _only_assembler(output: str) -> bool:
    """Whether ptxas alone complains: the front end, and with it all headers, had nothing to say."""
    return re.search(
        r"^ptxas (?:\S+, line \d+; )?(?:error|fatal)\s*:", output, re.M
    ) is not None and not certainty.errors(output)


def _headers(processes: _Processes, unit: Unit, flags: Sequence[str]) -> Headers | None:
    """What the headers of a unit say. None: cannot be told."""
    probe = unit.source.with_name(f"probe_{unit.source.name}")
    directives = certainty.directives(unit.text)
    if directives is None:
        return None
    command = unit.variant(["-E", "-Xcompiler", "-dD"] if probe.suffix == ".cu" else ["-E", "-dD"], "-", flags, probe)
    used = [path.read_text() for path in sorted(Path(unit.slim_flags[3]).iterdir())] if flags else []
    generic = [word.replace(str(unit.source.parent), "") for word in command if "TORCH_EXTENSION_NAME" not in word]
    name = cache.key(directives, generic, used, unit.identity)

    def make(folder: Path) -> None:
        probe.write_text(directives, encoding="utf-8")
        output = folder / "preprocessed"
        code, message = processes.run([*command[:-1], str(output)])
        found = None if code else certainty.read(output.read_text(errors="replace"), str(probe))
        output.unlink(missing_ok=True)
        if found is None:
            raise _UnreadableError(message)
        found.save(folder / "headers.json")

    try:
        return Headers.load(cache.build("headers", name, make) / "headers.json")
    except _UnreadableError:
        return None


class _UnreadableError(Exception):
    """The headers cannot be preprocessed, or not be understood."""
