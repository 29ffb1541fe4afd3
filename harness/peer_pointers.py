"""Where peers' addresses go in a candidate's C++ and CUDA: into copies, into kernels, into bulk copies of a kernel.

No parser: functions are found by their braces, and a name is a peer's if what is assigned to it names one. That is
enough to tell mechanisms apart, and it takes milliseconds. An address of the rank's own (`buffers[rank]`) is not one.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from harness.types import Mechanism

COPIES = re.compile(
    r"(?:cudaMemcpy(?:2D|3D)?(?:Peer)?(?:Async|BatchAsync)?|cuMemcpy\w*|cudaGraphAddMemcpyNode\w*)(?:_ptsz|_v2)?\Z"
)
OWN = frozenset(("rank", "my_rank", "myrank", "rank_", "me", "my_pe", "self_rank", "this_rank", "RANK", "Rank"))
"""What a rank's own number is called."""
_BULK = re.compile(r"\bcp\.(?:reduce\.)?async\.bulk\.(?!commit|wait|prefetch)")
_BULK_CALLS = re.compile(r"(?:cp_(?:reduce_)?async_bulk\w*|(?:store|load)(?:_add|_min|_max)?_async|memcpy_async)\Z")
_SIGNALS = frozenset(("rs_signal", "rs_wait", "rs_barrier_block", "rs_barrier", "rs_epoch"))
_ATOMIC = re.compile(r"\.(?:release|acquire|relaxed)\.|\batom\.|\bred\.(?!async)")
_ASM = frozenset(("asm", "volatile", "__asm__", "__volatile__"))
_LAUNCHERS = re.compile(r"(?:cudaLaunch(?:CooperativeKernel|Kernel\w*)|cuLaunch\w*Kernel\w*)\Z")
_OF_ADDRESSES = re.compile(r"HostToDevice|HtoD|sizeof\s*\([^()]*\*\s*\)|sizeof\s*\(\s*u?intptr_t\s*\)")
"""In a copy's arguments: the table of addresses is copied, and not what they point to."""
_WORD = re.compile(r"\b(?<!\.)(?<!->)[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_EQUALS = re.compile(r"=(?<![=<>!]=)(?!=)")
_OPENED = re.compile(r"[({]")
_TARGET = re.compile(r"\b([A-Za-z_]\w*)(?:(?:\.|->)\w+|\[[^\[\];]{0,80}\])*\s*\Z")
_MADE = re.compile(r"([A-Za-z_]\w*|>)[\s*&]+([A-Za-z_]\w*)\s*\Z")
_POINTER = re.compile(r"(?:[\w>]\s*\*|\bauto\b)[\s\w*&]*\Z")
_LONGEST = 2000
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
_PLAIN = str.maketrans("{}()[];,=<>", " " * 11)
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\([^()\n]*\)(.*)$", re.M)
_EXPORTED = re.compile(r'\b(?:def|impl)\s*\(\s*"([\w:]{1,100})[^"]{0,400}"\s*,[^;&]{0,80}&\s*([\w:]+)')
_CONTAINER = re.compile(r'\b(?:namespace|struct|class|union)\b[^()]*\Z|\bextern\s+"C"\s*\Z')
_PARENTHESES = re.compile(r"[()]")
_KEYWORDS = frozenset(("if", "for", "while", "switch", "sizeof", "return", "decltype"))
_LOOPED = re.compile(r"\bfor\s*\(\s*[\w:]+\s+(\w+)\s*=")
_OWN_INDEX = re.compile(rf"\[\s*(?:\w+(?:\.|->))?({'|'.join(sorted(OWN))})\s*\]")
_BEFORE = re.compile(r"[\w.>-]*\w\s*\Z")
_MOST = 400_000  # characters


class _Budget:
    """Of work on one candidate, which may have been written to have no end: ValueError when it is spent."""

    def __init__(self) -> None:
        self._left = 20_000

    def take(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise ValueError("more to follow than any candidate needs")


@dataclass(eq=False)
class _Function:
    name: str
    declared: str
    kernel: bool
    text: str
    budget: _Budget
    _above: dict[int, int] = field(default_factory=dict)
    _closing: dict[int, int] = field(default_factory=dict)
    _calls: dict[int, _Call | None] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> tuple[tuple[str, bool], ...]:
        """Name, and whether it may be a table of addresses."""
        return tuple(_parameters(self.declared))

    @cached_property
    def body(self) -> str:
        return _without_own(self.text)

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(_WORD.findall(self.body))

    def spread(self, names: frozenset[str]) -> frozenset[str]:
        """`names`, and those that something of them is assigned to; nothing if none of them stands here."""
        known, new, there = frozenset[str](), names, False
        while new:
            self.budget.take(1 + len(self.body) // 500)
            known |= new
            more: set[str] = set()
            for match in _any_of(new).finditer(self.body):
                there = True
                self.budget.take(1)
                more.update(self._targets(match.start()))
            new = frozenset(more) - known
        return known if there else frozenset()

    def calls(self, names: frozenset[str]) -> list[_Call]:
        """Those that have one of `names` among their arguments, in the order of the text."""
        places = [match.start() for match in _any_of(names).finditer(self.body)]
        found = {call.begin: call for at in places for call in self._around(at)}
        return [found[begin] for begin in sorted(found)]

    def makes_pointer(self, at: int) -> bool:
        """Whether what stands there is a part of `T* x = ...`."""
        statement = self._statement(at)
        return any(_POINTER.search(statement, 0, match.start()) for match in _EQUALS.finditer(statement))

    def _statement(self, at: int) -> str:
        """What stands before it in the same statement."""
        least = max(0, at - _LONGEST)
        return self.body[max(least, self.body.rfind(";", least, at) + 1, self.body.rfind("}", least, at) + 1) : at]

    def _targets(self, at: int) -> Iterator[str]:
        """Names that are made of what stands there: `x = ...`, `T x(...)`, `T x{...}`."""
        statement = self._statement(at)
        for match in _EQUALS.finditer(statement):
            if target := _TARGET.search(statement, max(0, match.start() - 200), match.start()):
                yield target[1]
        for match in _OPENED.finditer(statement):
            made = _MADE.search(statement, max(0, match.start() - 100), match.start())
            if made is not None and made[1] not in ("return", "else", "case"):
                yield made[2]

    @cached_property
    def _nesting(self) -> tuple[list[int], list[int]]:
        """Places of parentheses, and the opening one that what follows each stands in."""
        places, inner, open_ = [], [], [-1]
        for match in _PARENTHESES.finditer(self.body):
            if match[0] == "(":
                self._above[match.end()] = open_[-1]
                open_.append(match.end())
            elif len(open_) > 1:
                self._closing[open_.pop()] = match.start()
            places.append(match.start())
            inner.append(open_[-1])
        return places, inner

    def _around(self, at: int) -> Iterator[_Call]:
        places, inner = self._nesting
        index = bisect_right(places, at) - 1
        begin = inner[index] if index >= 0 else -1
        while begin >= 0:
            if begin not in self._calls:
                self._calls[begin] = _call(self.body, begin, self._closing.get(begin, len(self.body)))
            if (call := self._calls[begin]) is not None:
                yield call
            begin = self._above[begin]

    def tables(self) -> frozenset[str]:
        return frozenset(name for name, table in self.parameters if table)

    def given(self, arguments: Sequence[frozenset[str]], names: frozenset[str]) -> frozenset[str]:
        """Parameters that get something of `names`."""
        return frozenset(
            parameter for (parameter, _), words in zip(self.parameters, arguments, strict=False) if words & names
        )


@dataclass(eq=False)
class _Call:
    name: str
    launch: bool
    text: str
    """All arguments."""
    begin: int
    end: int

    @cached_property
    def arguments(self) -> list[frozenset[str]]:
        return [frozenset(_WORD.findall(part)) for part in _split(self.text)]


class PeerPointers:
    """The compiled part of a candidate. `found` grows with what is asked."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.found: set[Mechanism] = set()
        self._functions: dict[str, list[_Function]] = {}
        self._exported: dict[str, str] = {}
        self._globals: set[str] = set()
        self._seen: set[tuple[int, frozenset[str]]] = set()
        self._asked: set[tuple[str, tuple[bool, ...]]] = set()
        self._outside: set[str] = set()  # words that stand in no function
        self._used: dict[tuple[int, frozenset[str]], set[Mechanism]] = {}
        budget = _Budget()
        for text in dict.fromkeys(texts):
            if len(text) < _MOST:
                self._exported |= {name: target.split("::")[-1] for name, target in _EXPORTED.findall(text)}
                for function in _functions(text, self._outside, budget):
                    self._functions.setdefault(function.name, []).append(function)
        self._all = [function for same in self._functions.values() for function in same]

    def knows(self, name: str) -> bool:
        return self._exported.get(name, name) in self._functions

    def call(self, name: str, given: tuple[bool, ...]) -> None:
        """A function is called from Python with peers' addresses as those arguments."""
        if (name, given) in self._asked:
            return
        self._asked.add((name, given))
        for function in self._functions.get(self._exported.get(name, name), ()):
            named = zip(function.parameters, given, strict=False)
            self._host(function, frozenset(parameter for (parameter, _), peers in named if peers))
        self._through_globals()

    def guess(self) -> None:
        """Some function gets peers' addresses, and which one is not known: by all tables of addresses."""
        for function in self._all:
            if not function.kernel and ("<<<" in function.body or "emcpy" in function.body):
                self._host(function, function.tables())

    # -- host ----------------------------------------------------------------------------------------------------------

    def _through_globals(self) -> None:
        for _ in range(3):
            known = frozenset(self._globals)
            if not known:
                return
            for function in self._all:
                if known & function.words:
                    if function.kernel:
                        self._launch([function], frozenset())
                    else:
                        self._host(function, frozenset())
            if known == self._globals:
                return

    def _host(self, function: _Function, given: frozenset[str]) -> None:
        if function.kernel:  # launched by itself, as CuPy's RawKernel does
            self._launch([function], given)
            return
        names = self._spread(function, given)
        if (id(function), names) in self._seen or not names:
            return
        self._seen.add((id(function), names))
        passed = False
        for call in function.calls(names):
            if call.launch:
                kernels = self._named([call.name]) or self._kernels_in(function)
                for kernel in kernels:
                    self._launch([kernel], kernel.given(call.arguments, names))
                passed = True
            elif _LAUNCHERS.match(call.name):
                kernels = [k for k in self._named(_WORD.findall(call.text)) if k.kernel] or self._kernels_in(function)
                for kernel in kernels:
                    by_name = frozenset(p for p, _ in kernel.parameters if p in names)
                    self._launch([kernel], by_name or kernel.tables())
                passed = True
            elif COPIES.match(call.name) and not _OF_ADDRESSES.search(call.text):
                if any(words & names for words in call.arguments[:4]) or "Batch" in call.name:
                    self.found.add("copy engine")
                    passed = True
            else:
                for callee in self._named([call.name]):
                    self._host(callee, callee.given(call.arguments, names))
                    passed = True
        if not passed:  # through a table of functions or a pointer to one
            for other in self._named(function.words - {function.name}):
                by_name = frozenset(p for p, _ in other.parameters if p in names)
                self._host(other, by_name or other.tables())

    def _spread(self, function: _Function, given: frozenset[str]) -> frozenset[str]:
        """All names of a host function that peers' addresses get into."""
        names = function.spread(given | self._globals)
        for call in function.calls(names) if names and "emcpy" in function.body else ():
            if call.name.startswith("cudaMemcpyToSymbol") or (
                (call.name == "memcpy" or COPIES.match(call.name)) and _OF_ADDRESSES.search(call.text)
            ):
                names = function.spread(names | call.arguments[0])
        own = {name for name, _ in function.parameters}
        self._globals |= {name for name in (names & self._outside) - own if not _is_local(function, name)}
        return names

    def _named(self, names: Iterable[str]) -> list[_Function]:
        return [function for name in names for function in self._functions.get(name, ())]

    def _kernels_in(self, function: _Function) -> list[_Function]:
        kernels = [k for k in self._all if k.kernel]
        return [k for k in kernels if k.name in function.words] or kernels

    # -- device --------------------------------------------------------------------------------------------------------

    def _launch(self, kernels: Iterable[_Function], given: frozenset[str]) -> None:
        for kernel in kernels:
            uses = self._device(kernel, given | self._globals)
            if "TMA" in uses:
                self.found.add("TMA")
            elif uses:
                self.found.add("SM loads and stores")

    def _device(self, function: _Function, given: frozenset[str]) -> set[Mechanism]:
        """How a kernel, or a function of one, gets at memory that `given` points to."""
        key = id(function), given
        if key not in self._used:
            self._used[key] = set()  # of a function that calls itself: nothing more
            names = function.spread(given)
            self._used[key] = self._accesses(function, names) if names else set()
        return self._used[key]

    def _accesses(self, function: _Function, names: frozenset[str]) -> set[Mechanism]:
        uses: set[Mechanism] = set()
        elsewhere: list[tuple[int, int]] = []  # where a name stands that is not an access of this function's own
        for call in function.calls(names):
            if call.name in _SIGNALS:
                elsewhere.append((call.begin, call.end))
            elif call.name in _ASM:
                if _BULK.search(call.text):
                    uses.add("TMA")
                if _BULK.search(call.text) or _ATOMIC.search(call.text):
                    elsewhere.append((call.begin, call.end))
            elif callees := self._named([call.name]):
                for callee in callees:
                    uses |= self._device(callee, callee.given(call.arguments, names))
                elsewhere.append((call.begin, call.end))
            elif _BULK_CALLS.match(call.name) and (call.name != "memcpy_async" or "barrier" in call.text):
                uses.add("TMA")
        if not uses:
            for match in _any_of(names).finditer(function.body):
                at = match.start()
                if not any(begin <= at < end for begin, end in elsewhere) and not function.makes_pointer(at):
                    return {"SM loads and stores"}
        return uses


@functools.lru_cache(maxsize=256)
def _any_of(names: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?<!\.)(?<!->)(?:{'|'.join(sorted(names))})\b")


def _is_local(function: _Function, name: str) -> bool:
    declared = rf"[\w>*&\]][\s*&]+{re.escape(name)}\s*(?:\[[^\]]*\]\s*)*[=;,{{(]"
    found = re.search(declared, function.body)
    return found is not None and not re.match(r"(?:return|else)\b", function.body[found.start() :])


def _functions(text: str, outside: set[str], budget: _Budget) -> Iterator[_Function]:
    text = _STRING.sub(lambda match: f'"{match[0][1:-1].translate(_PLAIN)}"', text)
    macros = {name: body for name, body in _DEFINED.findall(text)}
    text = re.sub(r"^[ \t]*#.*$", "", text, flags=re.M)
    marks = [(match.start(), match[0]) for match in re.finditer(r"[{};]", text)]
    begin, i = 0, 0
    while i < len(marks):
        at, mark = marks[i]
        header, begin, i = text[max(begin, at - 3000) : at], at + 1, i + 1
        if mark != "{" or _CONTAINER.search(header):
            if mark == ";":
                outside.update(_WORD.findall(header))
            continue
        depth = 1
        while i < len(marks) and depth:
            depth += {"{": 1, "}": -1, ";": 0}[marks[i][1]]
            i += 1
        end = marks[i - 1][0] if i else at
        signature, begin = _signature(header), end + 1
        if signature is None:
            outside.update(_WORD.findall(header))
            continue
        body = text[at + 1 : end]
        if macros:
            body += " ".join(f"; {macros[word]};" for word in set(_WORD.findall(body)) & macros.keys())
        yield _Function(*signature, kernel="__global__" in header, text=body, budget=budget)


_AFTER = re.compile(r"(?:\b(?:const|noexcept|override|final|mutable)\b\s*+)*+(?:->[\w\s:<>*&]++)?\Z")
"""What stands between parameters and braces. Possessive: words of a return type are such words too."""


def _signature(header: str) -> tuple[str, str] | None:
    """Name and parameters of a function; None if it is something else that has braces."""
    header = _AFTER.sub("", header.rstrip()).rstrip()
    if not header.endswith(")"):
        return None
    depth = 0
    for at in range(len(header) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(header[at], 0)
        if depth == 0:
            break
    name = re.search(r"([A-Za-z_]\w*)\s*\Z", header[:at])
    if name is None:
        return None
    return name[1], header[at + 1 : -1]


def _parameters(text: str) -> Iterator[tuple[str, bool]]:
    for part in _split(text):
        declared = part.split("=")[0]
        words = re.findall(r"[A-Za-z_]\w*", re.sub(r"\[[^\]]*\]", "", declared))
        table = declared.count("*") > 1 or "[" in declared or "ensor" in declared
        yield words[-1] if words else "", table


def _without_own(body: str) -> str:
    """Without what is indexed by this rank's own number."""
    looped = set(_LOOPED.findall(body)) if "for" in body else set()
    kept, begin = [], 0
    for match in _OWN_INDEX.finditer(body):
        if match[1] in looped:
            continue
        named = _BEFORE.search(body, max(begin, match.start() - 100), match.start())
        kept += [body[begin : named.start() if named else match.start()], "0"]
        begin = match.end()
    return "".join([*kept, body[begin:]])


def _call(body: str, begin: int, end: int) -> _Call | None:
    """The call whose arguments stand there; None if these are parentheses of another sort."""
    least = max(0, begin - 300)
    before = body[least : begin - 1].rstrip()
    launch = before.endswith(">>>")
    if launch:
        before = before[: max(0, before.rfind("<<<"))].rstrip()
    if before.endswith(">"):
        depth = 0
        for at in range(len(before) - 1, -1, -1):
            depth += {">": 1, "<": -1}.get(before[at], 0)
            if depth == 0:
                before = before[:at].rstrip()
                break
    name = _NAME.search(before, max(0, len(before) - 100))
    if name is None or name[0] in _KEYWORDS:
        return None
    return _Call(name[0], launch, body[begin:end], least + name.start(), end + 1)


def _split(text: str) -> list[str]:
    """At commas that stand in no parentheses."""
    parts, depth, begin = [], 0, 0
    for match in re.finditer(r"[(){}\[\],<>]", text):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
        elif match[0] == "<" and text[match.end() - 2 : match.end() - 1].isalnum():
            close = re.compile(r"[\w\s:,*&]{0,100}>").match(text, match.end())
            depth += 1000 if close and depth < 1000 else 0
        elif match[0] == ">" and depth >= 1000:
            depth -= 1000
        elif match[0] == "," and depth == 0:
            parts.append(text[begin : match.start()])
            begin = match.end()
    parts.append(text[begin:])
    return parts if len(parts) > 1 or parts[0].strip() else []
