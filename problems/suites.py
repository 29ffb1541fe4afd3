"""Problems from elsewhere, through the same interface: a checkout of ParallelKernelBench, run as it is and never
written to; one file of a user's; a folder of such files. `docs/problems.md` has the formats."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from problems import catalogue
from problems.catalogue import Entry
from problems.parsing import parse
from problems.spec import Arguments, Case, Problem, ProblemError, RankContext, Subgroups, Tolerance, Work

_GENERATOR = Path("utils/input_output_tensors.py")
_NUMBERED = re.compile(r"p?(\d+)_(\w+)")
_PKB_CASES = {"pkb": {"m": 1024, "n": 1024}, "small": {"m": 128, "n": 128}}


def entries(suite: str) -> list[Entry]:
    """The suite's problems, sorted by number. Raises ProblemError if the path is none."""
    path = Path(suite).expanduser().resolve()
    if path.is_file():
        return [_user_entry(path, 1, str(path))]
    if (path / _GENERATOR).is_file() and (path / "reference").is_dir():
        found = [_pkb_entry(file, str(path)) for file in (path / "reference").glob("*.py") if _number(file)]
    elif path.is_dir():
        files = sorted(file for file in path.glob("*.py") if not file.name.startswith("_"))
        taken = {number for file in files if (number := _number(file))}
        free = iter(number for number in range(1, 10**6) if number not in taken)
        found = [_user_entry(file, _number(file) or next(free), str(path)) for file in files]
    else:
        raise ProblemError(
            f"no suite at {path}: give a checkout of ParallelKernelBench, a Python file, or a folder of them"
        )
    if not found:
        raise ProblemError(f"no problem in {path}")
    return sorted(found, key=lambda entry: entry.number)


def files(suite: str) -> tuple[Path, list[Path]]:
    """The suite's file or folder, and every file that its problems are made of: what must be copied to have it
    elsewhere. Raises ProblemError if the path is none."""
    listed, path = entries(suite), Path(suite).expanduser().resolve()
    if any(entry.published for entry in listed):
        return path, sorted([*(path / "reference").glob("*.py"), *(path / _GENERATOR).parent.glob("*.py")])
    return path, [entry.path for entry in listed]


def load(entry: Entry) -> Problem:
    """Imports the problem's file, in the suite's own way. Raises ProblemError if it cannot be."""
    return _load_pkb(entry) if entry.published else _load_user(entry)


def _number(path: Path) -> int | None:
    match = _NUMBERED.fullmatch(path.stem)
    return int(match.group(1)) if match else None


def _import(path: Path) -> Any:
    """A file as a module of its own name, imported once. Raises ProblemError."""
    name = f"suite_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        written, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder is somebody else's
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise ProblemError(f"{path} cannot be imported: {type(error).__name__}: {error}") from None
        finally:
            sys.dont_write_bytecode = written
    return sys.modules[name]


# -- a user's file ----------------------------------------------------------------------------------------------------


def _user_entry(path: Path, number: int, suite: str) -> Entry:
    """From a file with `PROBLEM`, or with `reference` (or `solution`) and `inputs` and, as it likes, `CASES` and
    `TOLERANCE` in literals, `work`, `illegal`."""
    try:
        module = parse(path.read_text(encoding="utf-8"), filename=str(path))
    except (SyntaxError, UnicodeDecodeError, OSError) as error:
        raise ProblemError(f"{path}: {error}") from None
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    function = next((name for name in ("reference", "solution") if name in functions), None)
    if function is None or "inputs" not in functions:
        raise ProblemError(f"{path}: a problem needs a function `reference` (or `solution`) and a function `inputs`")
    match = _NUMBERED.fullmatch(path.stem)
    name = match.group(2) if match else path.stem
    declared = _literals(module)
    if "PROBLEM" in declared:
        own = catalogue.declared_entry(path, number, name)
        return replace(own, suite=suite, function=function)
    tolerance: Tolerance = declared.get("TOLERANCE", "rounding")
    if tolerance not in get_args(Tolerance):
        raise ProblemError(f"{path}: TOLERANCE {tolerance!r} is not one of {', '.join(get_args(Tolerance))}")
    sizes = declared.get("CASES", {"default": {}})
    return Entry(
        number=number,
        name=name,
        title=(ast.get_docstring(module) or name).splitlines()[0],
        family="user",
        source=path.name,
        tags=(),
        cases={case: Case(case, dict(values)) for case, values in sizes.items()},
        tolerance=tolerance,
        repair="",
        updates=(),
        scratch=(),
        changing=None,
        few=True,  # nobody has said what the elements mean together
        path=path,
        suite=suite,
        function=function,
    )


def _literals(module: ast.Module) -> dict[str, Any]:
    """Top-level constants; `PROBLEM`, which is none, as True."""
    found: dict[str, Any] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            with contextlib.suppress(ValueError):
                found[name] = True if name == "PROBLEM" else ast.literal_eval(node.value)
    return found


def _load_user(entry: Entry) -> Problem:
    module = _import(entry.path)
    if isinstance(given := getattr(module, "PROBLEM", None), Problem):
        return given
    given_inputs = module.inputs
    takes_case = len(inspect.signature(given_inputs).parameters) > 1

    def inputs(case: Case, ctx: RankContext) -> Arguments:
        drawn = given_inputs(case, ctx) if takes_case else given_inputs(ctx)
        return tuple(drawn) if isinstance(drawn, (tuple, list)) else (drawn,)

    return Problem(
        title=entry.title,
        family=entry.family,
        source=entry.source,
        tags=entry.tags,
        reference=getattr(module, entry.function),
        inputs=inputs,
        work=getattr(module, "work", lambda case, world_size, element_bytes: Work()),
        cases={name: case.sizes for name, case in entry.cases.items()},
        tolerance=entry.tolerance,
        illegal=getattr(module, "illegal", lambda case, world_size: None),
        few=True,
    )


# -- a checkout of ParallelKernelBench --------------------------------------------------------------------------------


def _pkb_entry(path: Path, suite: str) -> Entry:
    """Title, tags and what may be written are ours: the same number is the same workload."""
    match = _NUMBERED.fullmatch(path.stem)
    assert match
    number, name = int(match.group(1)), match.group(2)
    ours = _ours().get((number, name))
    return Entry(
        number=number,
        name=name,
        title=ours.title if ours else name.replace("_", " "),
        family=ours.family if ours else "other",
        source=ours.source if ours else "ParallelKernelBench",
        tags=ours.tags if ours else (),
        cases={case: Case(case, sizes) for case, sizes in _PKB_CASES.items()},
        tolerance="flat",
        repair="",
        updates=(),
        # PKB does not look at what becomes of inputs; these are what the published workload writes into.
        scratch=tuple(sorted({*ours.updates, *ours.scratch})) if ours else (),
        changing=ours.changing if ours else None,
        few=True,
        path=path,
        suite=suite,
        function="solution",
        published=True,
    )


@functools.cache
def _ours() -> dict[tuple[int, str], Entry]:
    return {(entry.number, entry.name): entry for entry in catalogue.entries()}


def _load_pkb(entry: Entry) -> Problem:
    module = _import(entry.path)
    generator = _import(Path(entry.suite) / _GENERATOR)
    ours = _ours().get((entry.number, entry.name))
    problem = catalogue.load(entry.number) if ours else None

    def as_ours(case: Case) -> Case | None:
        return ours.cases["pkb"] if ours and case.name == "pkb" else None

    def work(case: Case, world_size: int, element_bytes: int) -> Work:
        same = as_ours(case)
        return problem.work(same, world_size, element_bytes) if problem and same else Work()

    def illegal(case: Case, world_size: int) -> str | None:
        same = as_ours(case)
        return problem.illegal(same, world_size) if problem and same else None

    return Problem(
        title=entry.title,
        family=entry.family,
        source=entry.source,
        tags=entry.tags,
        reference=module.solution,
        inputs=partial(_pkb_inputs, generator.create_input_tensor, entry.number),
        work=work,
        cases={name: case.sizes for name, case in entry.cases.items()},
        tolerance="flat",
        illegal=illegal,
        scratch=entry.scratch,
        changing=entry.changing,
        few=entry.few,
        gradients=True,
    )


def _pkb_inputs(create: Callable[..., Any], number: int, case: Case, ctx: RankContext) -> Arguments:
    """From the checkout's own generator. It seeds by a public formula of rank and trial; our secret is the trial."""
    import torch

    trial = int.from_bytes(hashlib.blake2b(str(ctx.seed).encode(), digest_size=5).digest(), "little")
    cuda = [torch.device(ctx.device)] if torch.device(ctx.device).type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), _groups_made_once():
        drawn = create(
            ctx.rank, ctx.world_size, number, (case["m"], case["n"]), ctx.dtype, trial=trial, device=ctx.device
        )
    return tuple(_without_groups(argument) for argument in drawn)


_made: dict[tuple[int, ...], Any] = {}


@contextlib.contextmanager
def _groups_made_once() -> Iterator[None]:
    """The generator makes its process groups anew for every trial; a communicator each would soon be too many."""
    import torch.distributed as dist

    make = dist.new_group

    def remembered(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        key = tuple(ranks) if ranks is not None else tuple(range(dist.get_world_size()))
        if key not in _made:
            _made[key] = make(list(key), *args, **kwargs)
        return _made[key]

    dist.new_group = remembered
    try:
        yield
    finally:
        dist.new_group = make


def _without_groups(value: Any) -> Any:
    """A process group as the sets of ranks that it is one of, found out by asking every rank."""
    import torch.distributed as dist

    if isinstance(value, dist.ProcessGroup):
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, tuple(dist.get_process_group_ranks(value)))
        return Subgroups(tuple(sorted(set(everybody))))
    return value
