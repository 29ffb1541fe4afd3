"""Why a candidate did not compile or run: the first real error with its line, and its cause where that is known.

Text in, findings out; the known causes are the tables of `compile_causes.py` and `runtime_causes.py`. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness import compile_causes, kit_header, runtime_causes
from harness.cause_rules import Known, find
from harness.code_text import source_lines
from harness.compiler_log import CANDIDATE, CompilerError, errors, shorten, triton_error
from harness.diagnosis import lost_peer, name_ranks
from harness.types import Finding, RankReport, Verdict

EXPLAINED = frozenset(
    [Verdict.compile_error, Verdict.api_error, Verdict.shape_error, Verdict.runtime_error, Verdict.out_of_memory]
)
"""Verdicts on an error whose text tells why; the finding's evidence is that text."""
_MAX_FINDINGS = 3
_LONGEST = 2000
"""Characters of an error that rules look at: a candidate may have written it so that they take long."""


def explain(
    verdict: Verdict | None, summary: str, log: str, ranks: Sequence[RankReport], source: str
) -> tuple[Finding, ...]:
    """`summary`: the failure in one line, used where no rank reports it; `log`: a compiler's output, if there is one;
    `source`: the candidate. Empty for verdicts that other evidence explains."""
    if verdict not in EXPLAINED:
        return ()
    if verdict is Verdict.compile_error and (error := _compile_error(log, source)) is not None:
        return (_compile_finding(error, source),)
    groups = _by_error(_guilty(ranks)) or [([], *_said(summary))]
    return tuple(_runtime_finding(*group, len(ranks), ranks, source) for group in groups[:_MAX_FINDINGS])


# ---------------------------------------------------------------------------------------------------------------------
# Compilers


def _compile_error(log: str, source: str) -> CompilerError | None:
    return triton_error(log, source) or next(iter(errors(log)), None)


def _compile_finding(error: CompilerError, source: str) -> Finding:
    known = find(compile_causes.RULES, error.shown, source, _words(source + kit_header()))
    if known is None:
        return _finding(None, "other compile error", "the compiler's first error", _at(error.line), error.shown)
    line = error.line or _line_of(known.name, source)
    return _finding(known, known.rule.cause, known.text, _at(line), error.shown)


def _line_of(name: str, source: str) -> int | None:
    """The only line of the candidate with this kernel or PTX instruction: ptxas names no line of it."""
    before = "" if name.startswith(".") else r"(?<![\w.])"
    lines = [(n, text) for n, text in enumerate(source_lines(source), 1) if name in text]
    lines = [(n, text) for n, text in lines if name and re.search(rf"{before}{re.escape(name)}(?!\w)", text)]
    kernels = [(n, text) for n, text in lines if "__global__" in text]
    return next((found[0][0] for found in (lines, kernels) if len(found) == 1), None)


def _words(text: str) -> list[str]:
    return re.findall(r"\b[A-Za-z_]\w{2,40}\b", text)


# ---------------------------------------------------------------------------------------------------------------------
# Ranks


def _guilty(ranks: Sequence[RankReport]) -> list[RankReport]:
    """Those whose own error it is: an error says more than a death, and a lost connection is the consequence of one."""
    failed = [r for r in ranks if not r.ok]
    dead = [r for r in failed if r.exit]
    said = [r for r in failed if not r.exit and r.message and not r.message.startswith("no progress")]
    own = [r for r in said if not lost_peer(r.message)]
    return own or dead or said


def _by_error(ranks: list[RankReport]) -> list[tuple[list[RankReport], str, int | None]]:
    """(ranks, error, line) for each different error."""
    found: dict[tuple[str, int | None], list[RankReport]] = {}
    for rank in ranks:
        found.setdefault((_error(rank), rank.line), []).append(rank)
    return [(alike, *key) for key, alike in found.items()]


def _error(rank: RankReport) -> str:
    return f"{rank.exit} while {rank.message.removeprefix('ended while ')}" if rank.exit else rank.message


def _said(summary: str) -> tuple[str, int | None]:
    """Error and line of a summary such as `all ranks: NameError: name 'y' is not defined (line 2)`."""
    match = re.fullmatch(r"(?:(?:all ranks|ranks? [\d, ]+): )?(.*?)(?: \(line (\d{1,7})\))?", summary, re.S)
    assert match is not None  # every part but `.*?` is optional
    return match[1], int(match[2]) if match[2] else None


def _runtime_finding(
    guilty: list[RankReport], error: str, line: int | None, world_size: int, ranks: Sequence[RankReport], source: str
) -> Finding:
    error = error.removeprefix("compiler: ")[:_LONGEST]
    printed = "\n".join(r.stderr for r in guilty)
    known = _known_runtime(error, printed, bool(guilty and guilty[0].exit), [*_KIT_NAMES, *_words(source)], source)
    evidence = f"{CANDIDATE}:{line}: {shorten(error)}" if line else shorten(error)
    if known and (said := known.rule.said(printed, error)):
        evidence += f" | printed: {shorten(said)}"
    numbers = [r.rank for r in guilty] if len(guilty) < world_size else []
    where = _at(line, numbers)
    if known is None:
        name = _NAME.match(error)
        cause = name[0] if name else "other error"
        return _finding(None, cause, f"{cause} in the candidate", where, evidence)
    return _finding(known, known.rule.cause, known.text, where, evidence)


_NAME = re.compile(
    r"(?:[A-Z_]\w*)?(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Failed|OutOfResources)(?=:|$)|SIG\w+(?= while )"
)
"""An exception or a signal. The first word of any other text tells nothing, as of `the extension does not load`."""


def _known_runtime(error: str, printed: str, ended: bool, names: Sequence[str], source: str) -> Known | None:
    if not ended:
        return find(runtime_causes.RULES, error, source, names)
    # A C++ exception that nothing caught: its text may be as well known as a Python error's.
    what = re.search(r"what\(\): *(.*)", printed) if error.startswith("SIGABRT") else None
    known = find(runtime_causes.RULES, what[1][:_LONGEST], source, names) if what else None
    return known or find(runtime_causes.EXITS, f"{error}\n{printed}", source)


_KIT_NAMES = [name for names in runtime_causes.KIT_NAMES.values() for name in names]


def _at(line: int | None, ranks: Sequence[int] = ()) -> str:
    """` (rank 1, line 12)`; no ranks for all of them."""
    parts = []
    if ranks:
        parts.append(name_ranks(ranks))
    if line:
        parts.append(f"line {line}")
    return f" ({', '.join(parts)})" if parts else ""


def _finding(known: Known | None, cause: str, text: str, where: str, evidence: str) -> Finding:
    return Finding(cause=cause, text=text + where, evidence=evidence, certain=known is None or known.rule.certain)
