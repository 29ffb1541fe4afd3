"""What in a failed candidate's source is probably not waited for. Text in, findings out; imports no torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from harness.code_text import parsed, source_lines
from harness.types import Finding, Verdict

_STREAM = re.compile(r"\bcuda\.Stream\(|\bcudaStreamCreate\w*\(|\bcuStreamCreate\w*\(|getStreamFromPool")
_POINT_TO_POINT = frozenset(["isend", "irecv", "batch_isend_irecv"])
"""Of torch.distributed: they return work that is always to be waited for."""
_WAITS = frozenset(["wait", "block_current_stream"])


def unwaited(verdict: Verdict | None, source: str, found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Of wrong values or a race: a collective that is begun and never waited for; of a race that nothing else explains:
    streams of the candidate's own. `found`: the findings so far."""
    if verdict in (Verdict.wrong_values, Verdict.race) and (begun := _never_waited_for(source)) is not None:
        line, name, why = begun
        return (
            Finding(
                cause="collective not waited for",
                text=f"`{name}` returns at once, with work that is still going on, and nothing waits for it: call "
                f"`.wait()` on what it returns before its buffers are read or written again (line {line})",
                evidence=why,
                certain=False,
            ),
        )
    if verdict is not Verdict.race or any(finding.cause != "unknown" for finding in found):
        return ()
    streams = [n for n, line in enumerate(source_lines(source), 1) if _STREAM.search(line)]
    if not streams:
        return ()
    return (
        Finding(
            cause="stream not joined",
            text="the candidate has streams of its own, and only calls back to back are wrong: probably the caller's "
            "stream does not wait for one of them before `solution` returns (wait_stream, cudaStreamWaitEvent), or one "
            f"begins before the caller's stream has got there (line {streams[0]})",
            evidence="single calls, which are waited for, were right; the wrong values are no other call's",
            certain=False,
        ),
    )


def _never_waited_for(source: str) -> tuple[int, str, str] | None:
    """Of the first call that returns work which nothing can wait for: its line, its name, and why nothing can."""
    try:
        nodes = list(ast.walk(parsed(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    waits = any(isinstance(node, ast.Attribute) and node.attr in _WAITS for node in nodes)
    dropped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    begun = [node for node in nodes if isinstance(node, ast.Call) and _returns_work(node)]
    never = [node for node in begun if not waits or id(node) in dropped]
    if not never:
        return None
    first = min(never, key=lambda node: node.lineno)
    why = "what it returns is dropped" if id(first) in dropped else "nothing in the source calls `wait`"
    return first.lineno, _name(first)[:60], why


def _name(call: ast.Call) -> str:
    """`dist.all_reduce`; of anything longer the last part."""
    if not isinstance(call.func, ast.Attribute):
        return getattr(call.func, "id", "the call")
    of = call.func.value
    return f"{of.id}.{call.func.attr}" if isinstance(of, ast.Name) else call.func.attr


def _returns_work(call: ast.Call) -> bool:
    return _name(call).rpartition(".")[2] in _POINT_TO_POINT or any(
        keyword.arg == "async_op" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )
