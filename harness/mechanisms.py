"""What moves data between ranks in a candidate, told from its text: cheap enough for every evaluation.

A profile measures it (`profiler.py`); this reads where peers' addresses and tensors go, in Python here and in C++ and
CUDA in `peer_pointers.py`. What the text does not settle is left out: none at all may mean that it cannot be told.
Which of several moves most cannot be told either: they are in the profile's order. Imports no torch.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness import policy
from harness.code_text import Piece, parsed, pieces, source_lines
from harness.peer_pointers import COPIES, OWN, PeerPointers
from harness.types import Mechanism, PlatformName

_ORDER: tuple[Mechanism, ...] = ("NCCL", "gloo", "copy engine", "TMA", "SM loads and stores", "NVLS", "shared memory")
_ADDRESS, _TENSOR = 1, 2
_ADDRESSES = frozenset(("ptrs", "buffer_ptrs", "buffer_ptrs_dev"))
_TENSORS = frozenset(("peer", "get_buffer", "get_remote_tensor", "get_remote_tensors"))
_HINTS = re.compile(r"ptrs|peer\b|get_buffer|get_remote_tensor")
_MANY_VIEWS = frozenset(("chunk", "split", "unbind", "tensor_split"))
_VIEWS = _MANY_VIEWS | {
    "view", "view_as", "reshape", "narrow", "flatten", "select", "t", "transpose", "permute", "squeeze", "unsqueeze",
    "expand", "detach", "contiguous", "as_strided", "unflatten", "movedim", "diagonal", "T", "mT", "data",
}  # fmt: skip
_ABOUT = frozenset((
    "numel", "size", "dim", "stride", "element_size", "is_contiguous", "nelement", "storage_offset", "get_device",
    "zero_", "fill_", "record_stream", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "print",
    "len",
))  # fmt: skip
"""Calls that move none of a peer's data. (Filling is how flags are lowered.)"""
_GATHERERS = frozenset((
    "list", "tuple", "sorted", "reversed", "set", "map", "iter", "filter", "cycle", "chain", "islice", "from_iterable",
))  # fmt: skip
_TABLES = frozenset(
    ("tensor", "as_tensor", "asarray", "array", "LongTensor", "from_numpy", "int", "c_void_p", "c_uint64")
)
_LIBRARY = re.compile(r"\bsymm_mem\.(_?(?:low_contention|fused|one_shot|two_shot|all_to_all|reduce_scatter)\w*)")
"""Torch's own collectives on symmetric memory: pipelines of copies, or kernels."""
_PUT_OR_GET = re.compile(
    r"\b(?:ncclGet(?:Lsa|Peer)Pointer|nvshmem_ptr|nvshmemx?_\w*(?:put|get)(?:mem)?\w*_(?:block|warp|nbi_block|nbi_warp))\b"
)
_ON_STREAM = re.compile(r"\bnvshmemx_\w*(?:put|get)mem\w*_on_stream\b")
_TENSOR_DESCRIPTOR = re.compile(r"tensor_descriptor|TensorDescriptor")
_ROUNDS, _MOST = 6, 1_000_000


def mechanisms(source: str, platform: PlatformName, uses_collectives: bool) -> tuple[Mechanism, ...]:
    """In the profile's order. `uses_collectives`: seen at run time, or named (`policy.names_nccl`)."""
    found: set[Mechanism] = set()
    if uses_collectives:
        found.add("NCCL" if platform == "cuda" else "gloo")
    if len(source) < _MOST:
        # Nothing that would run looks like what fails here.
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            found |= _on_cuda(source) if platform == "cuda" else _on_cpu(source)
    return tuple(mechanism for mechanism in _ORDER if mechanism in found)


def _on_cpu(source: str) -> set[Mechanism]:
    names = {piece.text for piece in pieces(source)}
    return {"shared memory"} if names & {"kit.symmetric", "harness.kit.symmetric"} else set()


def _on_cuda(source: str) -> set[Mechanism]:
    there = pieces(source)
    found: set[Mechanism] = set()
    texts = [piece.text for piece in there]
    for text in texts:
        if "symm_mem" in text and (match := _LIBRARY.search(text)):
            copies = "low_contention" in match[1] or "fused" in match[1]
            found.add("copy engine" if copies else "SM loads and stores")
        if ("ncclGet" in text or "nvshmem" in text) and _PUT_OR_GET.search(text):
            found.add("SM loads and stores")
        if "nvshmemx" in text and _ON_STREAM.search(text):
            found.add("copy engine")
    if "multicast" in policy.allowed() and policy.names_multicast(source):
        found.add("NVLS")
    if _HINTS.search(source):
        flow = _Flow(source, PeerPointers(_code(there)))
        found |= flow.found()
    return found


def _code(there: Sequence[Piece]) -> list[str]:
    """Texts that may be C++. Of a text's variants, which have the same lines, the last: its names are put together."""
    found: dict[tuple[int, int] | str, str] = {}
    for piece in there:
        if "{" in piece.text and "(" in piece.text:
            lines = piece.first_line, piece.last_line
            found[lines if lines[0] < lines[1] else piece.text] = piece.text
    return list(found.values())


@dataclass(frozen=True)
class _Many:
    """A list or dict of such values."""

    element: _Value


_Value = int | tuple["_Value", ...] | _Many
"""What an expression holds of peers: nothing, addresses, tensors; by element where that is known."""


def _flat(value: _Value) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, _Many):
        return _flat(value.element)
    return _or(value)


def _or(values: Sequence[_Value]) -> int:
    total = 0
    for value in values:
        total |= _flat(value)
    return total


def _join(a: _Value, b: _Value) -> _Value:
    if a == b or b == 0:
        return a
    if a == 0:
        return b
    if isinstance(a, _Many) and isinstance(b, _Many):
        return _Many(_join(a.element, b.element))
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(_join(x, y) for x, y in zip(a, b, strict=True))
    return _flat(a) | _flat(b)


def _element(value: _Value) -> _Value:
    """What iterating over it, or asking for a key, gives."""
    if isinstance(value, _Many):
        return value.element
    return _flat(value) if isinstance(value, tuple) else value


def _is_jit(decorator: ast.expr) -> bool:
    """`triton.jit`, `gluon.jit`, also with arguments: the function's code is the device's."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == "jit"


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class _Scope:
    """A function, or the module."""

    name: str
    above: _Scope | None
    values: dict[str, _Value] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)
    """Names that `global` or `nonlocal` gives to an outer scope."""

    def holder(self, name: str) -> _Scope | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope
            scope = scope.above
        return None


class _Flow:
    """Goes through a module again and again until nothing new is known of where peers' memory goes."""

    def __init__(self, source: str, code: PeerPointers) -> None:
        self._code = code
        self._found: set[Mechanism] = set()
        self._unknown = self._changed = False
        self._module = self._scope = _Scope("", None)
        self._scopes: dict[int, _Scope] = {}
        self._members: dict[str, _Value] = {}  # of all objects, by name
        self._returned: dict[int, _Value] = {}
        self._definitions: dict[str, dict[int, _Definition]] = {}
        self._descriptors: set[str] = set()  # Triton kernels that may copy in bulk
        self._loops: set[str] = set()
        self._function: ast.AST | None = None
        self._lines = source_lines(source)
        tree = parsed(source)
        self._define(tree.body)
        for _ in range(_ROUNDS):
            self._changed = self._unknown = False
            self._statements(tree.body)
            if not self._changed:
                break

    def _define(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, _Definition):
                self._definitions.setdefault(node.name, {})[id(node)] = node
                if isinstance(node, ast.ClassDef):
                    self._define(node.body)
                elif node.decorator_list:
                    text = "\n".join(self._lines[node.lineno - 1 : node.end_lineno])
                    if _TENSOR_DESCRIPTOR.search(text):
                        self._descriptors.add(node.name)

    def found(self) -> set[Mechanism]:
        if self._unknown and not self._found | self._code.found:
            self._code.guess()
        return self._found | self._code.found

    # -- statements ----------------------------------------------------------------------------------------------------

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not any(_is_jit(decorator) for decorator in node.decorator_list):
                self._enter(node)
        elif isinstance(node, ast.Assign):
            value = self._value(node.value)
            for target in node.targets:
                self._bind(target, value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._bind(node.target, self._value(node.value))
        elif isinstance(node, ast.AugAssign):
            self._augmented(node)
        elif isinstance(node, ast.For | ast.AsyncFor):
            if isinstance(node.target, ast.Name):
                self._loops.add(node.target.id)
            self._bind(node.target, _element(self._value(node.iter)))
            self._statements([*node.body, *node.orelse])
        elif isinstance(node, ast.Return):
            if node.value is not None:
                value = self._value(node.value)
                self._store(self._returned, id(self._function), value)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self._scope.outer.update(node.names)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    self._statement(child)
                elif isinstance(child, ast.expr):
                    self._value(child)
                elif isinstance(child, ast.withitem):
                    value = self._value(child.context_expr)
                    if child.optional_vars is not None:
                        self._bind(child.optional_vars, value)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    self._statements(child.body)

    def _augmented(self, node: ast.AugAssign) -> None:
        value = self._value(node.value)
        target = self._value(node.target)
        if (_flat(value) | _flat(target)) == _ADDRESS or isinstance(value, _Many):
            self._bind(node.target, value)
        elif (_flat(value) | _flat(target)) & _TENSOR:
            self._found.add("SM loads and stores")

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self._scope = self._scope, self._scopes.setdefault(id(node), _Scope(node.name, self._scope))
        function, self._function = self._function, node
        self._define(node.body)
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._scope.values.setdefault(argument.arg, 0)
        self._statements(node.body)
        self._scope, self._function = before, function

    # -- names ---------------------------------------------------------------------------------------------------------

    def _store(self, values: dict[str, _Value] | dict[int, _Value], key: str | int, value: _Value) -> None:
        known: dict[str | int, _Value] = values  # type: ignore[assignment]
        joined = _join(known.get(key, 0), value)
        if known.get(key) != joined:
            self._changed |= known.get(key, 0) != joined
            known[key] = joined

    def _bind(self, target: ast.expr, value: _Value) -> None:
        if isinstance(target, ast.Name):
            scope = self._module if target.id in self._scope.outer else self._scope
            self._store(scope.values, target.id, value)
        elif isinstance(target, ast.Attribute):
            self._store(self._members, target.attr, value)
        elif isinstance(target, ast.Subscript):
            into = self._value(target.value)
            if isinstance(into, int) and into & _TENSOR and not isinstance(value, _Many):
                self._found.add("copy engine")  # `peer[...] = x` is a copy
            elif _flat(value):
                # Of a tensor on this rank, or a list or dict: `out[...] = peer` is a copy if it is the former.
                self._put(target.value, value, maybe_tensor=isinstance(target.slice, ast.Slice | ast.Tuple))
        elif isinstance(target, ast.Starred):
            self._bind(target.value, _Many(_flat(value)))
        elif isinstance(target, ast.Tuple | ast.List):
            exact = isinstance(value, tuple) and len(value) == len(target.elts)
            for i, inner in enumerate(target.elts):
                self._bind(inner, value[i] if exact and isinstance(value, tuple) else _element(value))

    def _put(self, holder: ast.expr, value: _Value, maybe_tensor: bool = False) -> None:
        """Into a list or dict."""
        if maybe_tensor and value == _TENSOR and not self._is_container(holder):
            self._found.add("copy engine")
        elif isinstance(holder, ast.Name):
            scope = self._scope.holder(holder.id) or self._scope
            self._store(scope.values, holder.id, _Many(value))
        elif isinstance(holder, ast.Attribute):
            self._store(self._members, holder.attr, _Many(value))

    def _is_container(self, holder: ast.expr) -> bool:
        return isinstance(holder, ast.Name) and holder.id.isupper()

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> _Value:
        if isinstance(node, ast.Constant):
            return 0
        if isinstance(node, ast.Name):
            scope = self._scope.holder(node.id)
            return scope.values[node.id] if scope is not None else 0
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left), self._value(node.right)
            if isinstance(left, _Many) or isinstance(right, _Many):
                return _join(left, right)
            if (_flat(left) | _flat(right)) & _TENSOR:
                self._found.add("SM loads and stores")
                return 0
            return _flat(left) | _flat(right)
        if isinstance(node, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in node.elts):
            return tuple(self._value(e) for e in node.elts)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return _Many(_or([self._value(e) for e in node.elts]))
        if isinstance(node, ast.Dict):
            total: _Value = 0
            for inner in node.values:
                total = _join(total, self._value(inner))
            return _Many(total)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            for loop in node.generators:
                if isinstance(loop.target, ast.Name):
                    self._loops.add(loop.target.id)
                self._bind(loop.target, _element(self._value(loop.iter)))
                for test in loop.ifs:
                    self._value(test)
            return _Many(self._value(node.value if isinstance(node, ast.DictComp) else node.elt))
        if isinstance(node, ast.NamedExpr):
            value = self._value(node.value)
            self._bind(node.target, value)
            return value
        if isinstance(node, ast.IfExp):
            self._value(node.test)
            return _join(self._value(node.body), self._value(node.orelse))
        if isinstance(node, ast.BoolOp):
            total = 0
            for inner in node.values:
                total = _join(total, self._value(inner))
            return total
        if isinstance(node, ast.Lambda):
            return self._value(node.body)
        if isinstance(node, ast.Starred | ast.Await):
            return self._value(node.value)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value(child)
        return 0

    def _attribute(self, node: ast.Attribute) -> _Value:
        of = self._value(node.value)
        if node.attr in _ADDRESSES:
            return _ADDRESS
        if isinstance(of, int) and of & _TENSOR:
            return of if node.attr in _VIEWS else 0
        return self._members.get(node.attr, 0)

    def _subscript(self, node: ast.Subscript) -> _Value:
        of = self._value(node.value)
        self._value(node.slice)
        if of == 0:
            return 0
        if isinstance(of, int):
            return 0 if of == _ADDRESS and self._own(node.slice) else of
        if isinstance(of, _Many):
            return of if isinstance(node.slice, ast.Slice) else 0 if self._own(node.slice) else of.element
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(at, int) and -len(of) <= at < len(of):
            return of[at]
        return _flat(of)

    def _own(self, node: ast.expr) -> bool:
        """Whether it is this rank's own number."""
        if isinstance(node, ast.Name):
            return node.id in OWN and node.id not in self._loops
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Attribute) and node.func.attr in ("rank", "get_rank")
        return isinstance(node, ast.Attribute) and node.attr in OWN

    def _call(self, node: ast.Call) -> _Value:
        function, given = node.func, [self._value(argument) for argument in node.args]
        named = {keyword.arg or "": self._value(keyword.value) for keyword in node.keywords}
        everything = _or([*given, *named.values()])
        name = (
            function.attr
            if isinstance(function, ast.Attribute)
            else function.id
            if isinstance(function, ast.Name)
            else ""
        )
        of: _Value = 0
        if isinstance(function, ast.Attribute):
            if name in _TENSORS:
                own = bool(node.args) and self._own(node.args[0])
                return 0 if own else _Many(_TENSOR) if name == "get_remote_tensors" else _TENSOR
            of = self._value(function.value)
            if isinstance(of, int) and of & _TENSOR:
                return self._method(name, of, everything)
            if isinstance(of, _Many) and name in ("values", "copy"):
                return of
            if isinstance(of, _Many) and name in ("get", "pop", "setdefault", "popleft"):
                return of.element
            if isinstance(of, _Many) and name == "items":
                return _Many((0, of.element))
            if everything and not self._code.knows(name) and name in ("append", "appendleft", "insert", "setdefault"):
                self._put(function.value, given[-1] if given else 0)
                return given[-1] if given else 0
            if everything and name == "extend":
                self._put(function.value, _element(given[0]) if given else 0)
                return 0
        if not everything:
            return self._result(name)
        return self._given(node, name, given, named, everything)

    def _method(self, name: str, of: int, everything: int) -> _Value:
        """Of a peer's tensor."""
        if name == "data_ptr":
            return _ADDRESS
        if name in _VIEWS:
            return _Many(of) if name in _MANY_VIEWS else of
        if name in ("copy_", "clone"):
            self._found.add("copy engine")
        elif name not in _ABOUT:
            self._found.add("SM loads and stores")
        return 0

    def _result(self, name: str) -> _Value:
        total: _Value = 0
        for definition in self._definitions.get(name, {}).values():
            total = _join(total, self._returned.get(id(definition), 0))
        return total

    def _given(
        self, node: ast.Call, name: str, given: list[_Value], named: dict[str, _Value], everything: int
    ) -> _Value:
        """A call that gets something of peers."""
        if isinstance(node.func, ast.Subscript):  # Triton
            kernel = node.func.value
            if not (isinstance(kernel, ast.Name) and kernel.id in self._descriptors):
                self._found.add("SM loads and stores")
            return 0
        if name == "copy_" or COPIES.match(name):
            self._found.add("copy engine")
            return 0
        if name in self._definitions:
            self._into(name, given, named)
            return self._result(name)
        if self._code.knows(name):
            self._code.call(name, tuple(_flat(value) > 0 for value in given))
            return 0
        if name in _TABLES:
            return _Many(_ADDRESS) if everything == _ADDRESS else everything
        if name == "zip":
            return _Many(tuple(_element(value) for value in given))
        if name == "enumerate":
            return _Many((0, _element(given[0] if given else 0)))
        if name in _GATHERERS:
            return _Many(_or(given))
        if name in _ABOUT:
            return 0
        if name in _MANY_VIEWS or name in _VIEWS:
            return _Many(everything) if name in _MANY_VIEWS else everything
        if everything & _TENSOR and isinstance(node.func, ast.Attribute):
            self._found.add("SM loads and stores")  # of torch, or of a library that is not known
            return 0
        self._unknown = True
        return everything

    def _into(self, name: str, given: list[_Value], named: dict[str, _Value]) -> None:
        """Arguments into the parameters of a function or class of the candidate."""
        for definition in self._definitions[name].values():
            if isinstance(definition, ast.ClassDef):
                fields = [s.target for s in definition.body if isinstance(s, ast.AnnAssign)]
                for target, value in zip(fields, given, strict=False):
                    if isinstance(target, ast.Name):
                        self._store(self._members, target.id, value)
                for key, value in named.items():
                    self._store(self._members, key, value)
                inits = [s for s in definition.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"]
            else:
                inits = [definition] if isinstance(definition, ast.FunctionDef) else []
            for function in inits:
                names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
                names = names[1:] if names[:1] in (["self"], ["cls"]) else names
                scope = self._scopes.setdefault(id(function), _Scope(function.name, self._module))
                for key, value in [*zip(names, given, strict=False), *named.items()]:
                    self._store(scope.values, key, value)
