"""Finds problem files and reads what they say about themselves. The file name is the registry.

`suite` is a path to somebody else's problems (see `suites`), or "" for the 87 of this folder. Everything but `load`
parses source text, so listing needs no torch.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from problems.parsing import parse
from problems.spec import Case, Problem, ProblemError, Tolerance

_FOLDER = Path(__file__).parent
_FILE_NAME = re.compile(r"p(\d+)_(\w+)")
# What a model must not see: inputs are drawn from secret seeds, work is the judge's.
_HIDDEN = frozenset({"PROBLEM", "canonical", "illegal", "inputs", "unsure", "work"})


@dataclass(frozen=True)
class Entry:
    """One problem as listed. `path` is its file; `name` that file's name without number."""

    number: int
    name: str
    title: str
    family: str
    source: str
    tags: tuple[str, ...]
    cases: dict[str, Case]
    tolerance: Tolerance
    repair: str
    updates: tuple[int, ...]
    scratch: tuple[int, ...]
    changing: tuple[int, ...] | None
    few: bool
    path: Path
    suite: str = ""
    """Where it comes from: an absolute path, or "" for ours."""
    function: str = "reference"
    """Name of the function that says what is right."""
    published: bool = False
    """From a checkout of ParallelKernelBench: shown and run as it is."""

    @property
    def default(self) -> str:
        """The case that is meant where none is named."""
        return next((name for name in ("default", "pkb") if name in self.cases), next(iter(self.cases)))

    @property
    def arguments(self) -> list[str]:
        """The names of the function's arguments."""
        for node in parse(self.path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == self.function:
                return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        return []


def entries(suite: str = "") -> list[Entry]:
    """All problems, sorted by number. Raises ProblemError for a file whose `PROBLEM` is missing or not in literals, and
    for a suite that is none."""
    if suite:
        from problems import suites

        return suites.entries(suite)
    found = (read_entry(path) for path in _FOLDER.glob("p*.py") if _FILE_NAME.fullmatch(path.stem))
    return sorted(found, key=lambda entry: entry.number)


def find(query: str | int, suite: str = "") -> Entry:
    """The problem of that number or name: `13`, `"13"`, `"gemm_allreduce"` or `"p13_gemm_allreduce"`.

    Raises ProblemError, naming near matches, if there is none.
    """
    wanted = str(query).strip().lower().removesuffix(".py").replace("-", "_")
    number = int(digits.group(1)) if (digits := re.fullmatch(r"p?(\d+)", wanted)) else None
    listed = entries(suite)
    for entry in listed:
        if number == entry.number or wanted in (entry.name, entry.path.stem):
            return entry
    near = _near_numbers(number, listed) if number is not None else _near_names(wanted, listed)
    suggestion = ", ".join(f"{entry.number} {entry.name}" for entry in near)
    raise ProblemError(f"no problem {str(query)!r}; " + (f"near: {suggestion}" if near else "no name is similar"))


def select_case(entry: Entry, name: str) -> Case:
    """The problem's case of that name. Raises ProblemError, naming the cases there are, if there is none."""
    try:
        return entry.cases[name]
    except KeyError:
        known = ", ".join(entry.cases)
        raise ProblemError(f"problem {entry.number} ({entry.name}) has no case {name!r}; it has {known}") from None


def load(number: int, suite: str = "") -> Problem:
    """Imports that problem's module alone (and torch). Raises ProblemError if there is none of that number, or if a
    suite's file cannot be imported."""
    if suite:
        from problems import suites

        return suites.load(find(number, suite))
    problem: Problem = importlib.import_module(f"problems.{find(number).path.stem}").PROBLEM
    return problem


def statement(entry: Entry) -> str:
    """The source that a model is shown: the docstring, `reference`, and the imports, constants and helpers it needs.

    The text is a module that runs by itself. Inputs, work model and declaration are never part of it.
    """
    source = entry.path.read_text(encoding="utf-8")
    if entry.published:
        return source
    lines, module = source.splitlines(), parse(source)
    needed = _needed_by(entry.function, module)
    text = ""
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            text += _shown_import(node, needed)
        elif _bound(node) & needed:
            text += _gap_before(node) + _with_comments(node, lines)
        elif node is module.body[0] and ast.get_docstring(module) is not None:
            text += _with_comments(node, lines) + "\n"
    return text


def _near_numbers(number: int, listed: list[Entry]) -> list[Entry]:
    return sorted(listed, key=lambda entry: abs(entry.number - number))[:3]


def _near_names(name: str, listed: list[Entry]) -> list[Entry]:
    by_name = {entry.name: entry for entry in listed}
    return [by_name[close] for close in difflib.get_close_matches(name, by_name, n=3, cutoff=0.4)]


def read_entry(path: Path) -> Entry:
    """What one of our files says. Raises ProblemError."""
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _read(path: Path, changed_ns: int) -> Entry:
    match = _FILE_NAME.fullmatch(path.stem)
    assert match
    return declared_entry(path, int(match.group(1)), match.group(2))


def declared_entry(path: Path, number: int, name: str) -> Entry:
    """What a file's `PROBLEM` says. Raises ProblemError if that is missing or not in literals."""
    declared = _declaration(path)
    try:
        return Entry(
            number=number,
            name=name,
            title=declared["title"],
            family=declared["family"],
            source=declared["source"],
            tags=declared["tags"],
            cases={name: Case(name, sizes) for name, sizes in declared["cases"].items()},
            tolerance=_tolerance(declared, path),
            repair=declared.get("repair", ""),
            updates=declared.get("updates", ()),
            scratch=declared.get("scratch", ()),
            changing=declared.get("changing"),
            few=declared.get("few", False),
            path=path,
        )
    except KeyError as missing:
        raise ProblemError(f"{path.name}: PROBLEM has no literal {missing}") from None


def _declaration(path: Path) -> dict[str, Any]:
    """The literal keyword arguments of the file's `PROBLEM = Problem(...)`."""
    for node in parse(path.read_text(encoding="utf-8"), filename=str(path)).body:
        if isinstance(node, ast.Assign) and "PROBLEM" in _bound(node) and isinstance(node.value, ast.Call):
            declared = {}
            for keyword in node.value.keywords:
                with contextlib.suppress(ValueError):  # not a literal: a function, such as `reference`
                    declared[str(keyword.arg)] = ast.literal_eval(keyword.value)
            return declared
    raise ProblemError(f"{path.name}: no PROBLEM = Problem(...) at the top level")


def _tolerance(declared: dict[str, Any], path: Path) -> Tolerance:
    tolerance: Tolerance = declared.get("tolerance", "rounding")
    if tolerance not in get_args(Tolerance):
        raise ProblemError(f"{path.name}: tolerance {tolerance!r} is not one of {', '.join(get_args(Tolerance))}")
    return tolerance


def _bound(node: ast.stmt) -> set[str]:
    """Names that a top-level constant, function or class defines; imports apart."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


def _needed_by(start: str, module: ast.Module) -> set[str]:
    """Every name that `start` uses, directly or through the module's own definitions."""
    definitions = {name: node for node in module.body for name in _bound(node)}
    needed: set[str] = set()
    waiting = {start}
    while waiting:
        name = waiting.pop()
        needed.add(name)
        if name in definitions:
            waiting |= _used(definitions[name]) - needed - _HIDDEN
    return needed


def _used(node: ast.stmt) -> set[str]:
    """Names that a definition uses, but for those that it binds itself: arguments and what it assigns to."""
    names = [child for child in ast.walk(node) if isinstance(child, ast.Name)]
    if not isinstance(node, ast.FunctionDef):
        return {name.id for name in names}
    bound = {name.id for part in node.body for name in _own(part) if isinstance(name, ast.Name) and _is_set(name)}
    bound |= {child.arg for child in ast.walk(node.args) if isinstance(child, ast.arg)}
    annotations = {name.id for part in _annotations(node) for name in ast.walk(part) if isinstance(name, ast.Name)}
    return ({name.id for name in names} - bound) | annotations


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A statement's nodes in the function's own scope: a comprehension or an inner function has names of its own."""
    yield node
    if not isinstance(
        node, ast.FunctionDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _annotations(node: ast.FunctionDef) -> list[ast.AST]:
    """What a function's signature uses: its locals do not hide it."""
    arguments = [child for child in ast.walk(node.args) if isinstance(child, ast.arg)]
    return [part for part in (node.returns, *(a.annotation for a in arguments), *node.decorator_list) if part]


def _shown_import(node: ast.Import | ast.ImportFrom, needed: set[str]) -> str:
    """The import reduced to needed names, or nothing."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return ast.unparse(node) + "\n"  # changes how annotations are read, so always kept
    node.names = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in needed]
    return ast.unparse(node) + "\n" if node.names else ""


def _gap_before(node: ast.stmt) -> str:
    return "\n" if isinstance(node, ast.Assign | ast.AnnAssign) else "\n\n"


def _with_comments(node: ast.stmt, lines: list[str]) -> str:
    """The statement's own lines with decorators and the comment lines directly above it."""
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]) - 1
    while first > 0 and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : node.end_lineno]) + "\n"
