"""A small set of torch's headers for one source: the same declarations, fewer of them.

`include/slim` stands before torch's own folder and replaces the headers that include everything. Two files are written
for each source: `ringsmith_used.h` switches parts on, `ringsmith_functions.h` includes the functions that the source
names. All declarations are torch's own. A name that is missing is a compile error, after which the source is built with
the full headers; what could compile and mean something else is excluded here.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from harness import cache

FOLDER = Path(__file__).parent / "include" / "slim"

# at:: and torch:: have these alike unless requires_grad is asked for; torch::tensor and others differ.
_SAME_FACTORIES = {
    "arange", "empty", "empty_like", "empty_strided", "eye", "from_blob", "full", "full_like", "linspace", "ones",
    "ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "zeros", "zeros_like",
}  # fmt: skip
_FREE = r"(?<![\w.>])"
_NEEDS_ALL = re.compile(
    r"TORCH_LIBRARY|\b(?:at|torch)\s*::\s*std\b|(?<![\w.>:])std\s*\(|\bnative\s*::"
    # In another file or behind a pasted name, functions may be used that are not seen here.
    r'|^[ \t]*#[ \t]*include[ \t]*(?:\w|"(?!cuda|cooperative_groups|mma|cub/|thrust/|torch/|ATen/|c10/))'
    r"|^[ \t]*#[ \t]*define\b.*##",
    re.M,
)
_INDEXING = re.compile(r"\b(?:indexing|Slice|TensorIndex|Ellipsis)\b|\bindex(?:_put_)?\s*\(\s*\{")
_CONTEXT = re.compile(r"globalContext|AT_CUDA_|Context\(")


def identity() -> str:
    """Changes with the headers here."""
    files = sorted(path for path in FOLDER.rglob("*.h"))
    return cache.key([(str(path.relative_to(FOLDER)), path.read_bytes()) for path in files])


def write(folder: Path, source: str, torch_include: Path) -> bool:
    """Write the two headers for a source. False: only the full headers are sure to mean the same."""
    called = set(re.findall(rf"{_FREE}(\w+)\s*[(<]", source))
    operators = _operators(torch_include, called)
    switches = {
        "FACTORIES": "requires_grad" in source or bool(called & _other_factories(torch_include)),
        "INDEXING": _INDEXING.search(source),
        "CONTEXT": _CONTEXT.search(source),
        "DEVICE_OF": "device_of" in called,
    }
    used = ["#pragma once", *(f"#define RINGSMITH_{name}" for name, on in switches.items() if on)]
    (folder / "ringsmith_used.h").write_text("\n".join(used) + "\n")
    lines = ["#pragma once"]
    if any("ITensorListRef" in _header(torch_include, name) for name in operators):
        lines.append("#include <ATen/core/IListRef.h>")  # only declared where the functions are
    lines += [f"#include <ATen/ops/{name}.h>" for name in operators]
    (folder / "ringsmith_functions.h").write_text("\n".join(lines) + "\n")
    return not (_NEEDS_ALL.search(source) or called & _extra_functions(torch_include))


def _operators(torch_include: Path, called: set[str]) -> list[str]:
    names = called | {re.sub(r"_(out|outf|symint)$", "", name) for name in called} | {n.rstrip("_") for n in called}
    return sorted(name for name in names if name and (torch_include / "ATen" / "ops" / f"{name}.h").exists())


@functools.cache
def _header(torch_include: Path, operator: str) -> str:
    return (torch_include / "ATen" / "ops" / f"{operator}.h").read_text()


@functools.cache
def _other_factories(torch_include: Path) -> frozenset[str]:
    """Functions that torch:: defines itself and that differ from at::'s."""
    text = (torch_include / "torch/csrc/autograd/generated/variable_factories.h").read_text()
    return frozenset(re.findall(r"^inline at::Tensor (\w+)\(", text, re.M)) - _SAME_FACTORIES


@functools.cache
def _extra_functions(torch_include: Path) -> frozenset[str]:
    """Free functions that ATen/Functions.h defines itself. Some overload a function of ATen/ops: at::var(x, 0) without
    its overload for a dimension would take 0 for `unbiased`. (`std` has its own pattern.)"""
    text = (torch_include / "ATen" / "Functions.h").read_text()
    found = re.findall(r"^inline .*?(\w+)\(", text[text.index("namespace at {") :], re.M)
    return frozenset(found) - {"std"}
