"""The build role: compiles what a candidate will need, without a device and before any lease.

It imports the candidate (whatever it builds at import is built) and then evaluates, by `ast`, the arguments of build
calls that sit inside functions; those that need nothing but module-level names are made now. Anything that escapes
this (a source put together at run time) is compiled by the ranks on their first call, once for all of them.
"""

from __future__ import annotations

import ast
import contextlib
import os
from pathlib import Path
from typing import Any

from harness import extension, kit, policy
from harness.candidate_rank import NoSolutionError, import_candidate
from harness.progress import Phase
from harness.rank import Handler, Rank, describe_error

_BUILDERS = {"compile_cuda_extension", "load_inline"}
# Wrong on every machine, whatever devices it has; other exceptions at import may only mean that there is no GPU here.
_CERTAIN = (SyntaxError, NameError, ImportError, NoSolutionError, kit.KitError, policy.PolicyError)


class Builder:
    def __init__(self, state: Rank) -> None:
        self._state = state
        self.handlers: dict[str, Handler] = {"build": self._build}

    def _build(self, message: dict[str, Any]) -> dict[str, Any]:
        """Reply: `built` names, and `failure` = the error that no machine would survive, or None."""
        state, path = self._state, Path(message["path"])
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        source = path.read_text(encoding="utf-8")
        built: list[str] = []
        kit.bind(
            kit._State(
                platform=state.platform,
                rank=0,
                world_size=state.world_size,
                device=None,
                progress=state.progress,
                source=source,
                built=built,
            )
        )
        extension.install()
        state.progress.enter(Phase.loading)
        try:
            module = import_candidate(path)
            for call in _lazy_builds(ast.parse(source.removeprefix("\ufeff"))):
                with contextlib.suppress(_NotStaticError):
                    function, arguments, keywords = _evaluate(call, vars(module))
                    function(*arguments, **keywords)
        except kit.BuildError as error:
            return {"built": built, "failure": describe_error(error)}
        except _CERTAIN as error:
            return {"built": built, "failure": describe_error(error)}
        except (Exception, SystemExit):
            # The load stage will meet it again, in a place where it counts.
            return {"built": built, "failure": None}
        return {"built": built, "failure": None}


class _NotStaticError(Exception):
    """The call's arguments are not known before run time."""


def _lazy_builds(tree: ast.Module) -> list[ast.Call]:
    """Build calls inside functions."""
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda))]
    calls = {id(n): n for f in functions for n in ast.walk(f) if isinstance(n, ast.Call) and _is_build(n.func)}
    return list(calls.values())


def _is_build(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        kit_build = isinstance(function.value, ast.Name) and function.value.id == "kit" and function.attr == "build"
        return kit_build or function.attr in _BUILDERS
    return isinstance(function, ast.Name) and function.id in _BUILDERS


def _evaluate(call: ast.Call, names: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    """Function, positional and keyword arguments of a call, from module-level names alone."""

    def value(node: ast.expr) -> Any:
        # A local variable may shadow a module-level name; such a name is not assigned at module level as well in
        # practice, and a wrong guess only compiles something that nobody loads.
        code = compile(ast.Expression(node), "candidate.py", "eval")
        try:
            return eval(code, dict(names))
        except Exception:
            raise _NotStaticError from None

    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        raise _NotStaticError
    return value(call.func), [value(a) for a in call.args], {str(k.arg): value(k.value) for k in call.keywords}
