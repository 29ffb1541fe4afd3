"""Is a compile error, seen with a small set of headers, certain to occur with all of them?

The full headers only add declarations and macros. So an error is certain if nothing that they add could have to do
with it: an undeclared name that they declare nowhere; a syntax error in text whose every word means the same in both;
a mismatch of types that they do not mention more often. Whatever is not understood is not certain: a wrong "certain"
would refuse a source that compiles.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.code_text import source_lines


@dataclass(frozen=True)
class Headers:
    """What the headers of one translation unit say, from its preprocessed text."""

    macros: frozenset[str]
    declared: frozenset[str]
    """Words outside of all braces but those of namespaces and enumerations: more than what is declared there."""
    unqualified: frozenset[str]
    """Those of them outside of named namespaces."""
    friends: frozenset[str]
    """Words in friend declarations: found through arguments, though no scope shows them."""
    words: dict[str, int]

    def save(self, path: Path) -> None:
        sets = {name: sorted(getattr(self, name)) for name in _SETS}
        path.write_text(json.dumps({**sets, "words": self.words}))

    @staticmethod
    def load(path: Path) -> Headers:
        data = json.loads(path.read_text())
        return Headers(**{name: frozenset(data[name]) for name in _SETS}, words=data["words"])


_SETS = ("macros", "declared", "unqualified", "friends")


def directives(source: str) -> str | None:
    """The preprocessor lines of a source: all that decides what its headers say. None if some may be commented out."""
    if any(re.search(r"^[ \t]*#", comment, re.M) for comment in re.findall(r"/\*.*?\*/", source, re.S)):
        return None
    found = re.findall(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", source, re.M)
    return "\n".join(line for line in found if not line.startswith("#line")) + "\n"


_STRING = re.compile(
    r'R"([^()\\ \n]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z])[LuU]?\'(?:\\.[0-9a-fA-F]*|[^\'\\\n])\'', re.S
)


def read(preprocessed: str, own: str) -> Headers | None:
    """`preprocessed`: output of `-E -dD`; lines of the file `own` are left out. None: not understood."""
    macros: set[str] = set()
    kept: list[str] = []
    ours = False
    for line in preprocessed.splitlines():
        if not line.startswith("#"):
            if not ours:
                kept.append(line)
        elif marker := re.match(r'# \d+ "(.*?)"', line):
            ours = marker[1] == own
        elif not ours and (define := re.match(r"#define (\w+)(.*)", line)):
            macros.add(define[1])
    text = _STRING.sub('""', "\n".join(kept))
    outside = _outside_braces(text)
    if outside is None:
        return None
    unqualified, qualified = map(_without_parameters, outside)
    if re.search(r"\busing\s+namespace\b", unqualified):
        unqualified += qualified
    return Headers(
        macros=frozenset(macros),
        declared=frozenset(_words([unqualified, qualified])),
        unqualified=frozenset(_words([unqualified])),
        friends=frozenset(_words(re.findall(r"\bfriend\b[^;{}]*", text))),
        words=dict(Counter(_WORD.findall(text))),
    )


def _outside_braces(text: str) -> tuple[str, str] | None:
    """The text without what stands in braces, other than those whose names are visible outside; in two parts: outside
    and inside of named namespaces."""
    parts: tuple[list[str], list[str]] = ([], [])
    scopes: list[bool] = []  # of the open braces that count: is it a named namespace?
    boundary = skipping = 0
    for match in re.finditer(r"[{};]", text):
        kind, at = match[0], match.start()
        if skipping:
            skipping += {"{": 1, "}": -1, ";": 0}[kind]
            if not skipping:
                boundary = at + 1
            continue
        piece = text[boundary:at]
        parts[any(scopes)].extend((piece, ";"))
        boundary = at + 1
        if kind == "}":
            if not scopes:
                return None
            scopes.pop()
        elif kind == "{":
            if re.search(r'\b(?:namespace|enum|union)\b|\bextern\s*""\s*$|\b(?:struct|class)\s*$', piece):
                scopes.append(bool(re.search(r"\bnamespace\s+(?!__attribute__)(?:\[\[.*?\]\]\s*)?\w", piece)))
            else:
                skipping = 1
    if scopes or skipping:
        return None
    parts[0].append(text[boundary:])
    return "".join(parts[0]), "".join(parts[1])


def _without_parameters(text: str) -> str:
    """Without parameter lists: their names are not visible outside. `(*name)` and `(name)` may declare and stay."""
    text = re.sub(r"\btemplate\s*<[^<>(){};]*>", " ", text)
    while True:
        shorter = re.sub(
            r"\(([^()]*)\)",
            lambda m: f" {m[1]} " if re.match(r"\s*(?:[*&^]|[\w:]+\s*$|[\w:]+::\s*\*)", m[1]) else " ",
            text,
        )
        if shorter == text:
            return text
        text = shorter


_UNDECLARED = re.compile(
    r"identifier \"(\w+)\" is undefined$|namespace \"[\w:]+\" has no member \"(\w+)\"$"
    r"|'(\w+)' was not declared in this scope(?:; did you mean .*)?$"
    r"|'(\w+)' is not a member of '[\w:]+'(?:; did you mean .*)?$"
    r"|'(\w+)' does not name a type(?:; did you mean .*)?$"
)
_NO_MEMBER = re.compile(
    r"(?:class|struct|union) \"[^\"]+\" has no member \"(\w+)\"$|'[^']+' has no member named '(\w+)'(?:; did you .*)?$"
)
_SYNTAX = re.compile(
    r"expected a \"[;)}\]]\"$|expected a declaration$|unrecognized token$|missing closing quote$"
    r"|expected '[;)}\]]' before|expected ',' or ';' before|expected '}' at end of input$"
    r"|expected declaration before '}'|missing terminating|stray '.*' in program$"
)
_TYPES = re.compile(
    r"no operator \"[^\"\w]+\" matches these operands$"
    r"|argument of type \".*\" is incompatible with parameter of type \".*\"$"
    r"|a value of type \".*\" cannot be (?:assigned to an entity|used to initialize an entity) of type \".*\"$"
    r"|no suitable (?:user-defined conversion|conversion function) from \".*\" to \".*\" exists$"
)
_DECIDED_BY_COMPILER = {"__CUDA_ARCH__", "__CUDACC__", "__CUDA_ARCH_FEAT_SM90_ALL", "CUDA_VERSION", "CUDART_VERSION"}


@dataclass(frozen=True)
class CompileError:
    file: str
    line: int
    message: str
    block: str
    """With the lines that belong to it."""

    def line_in(self, source: str, name: str) -> int | None:
        """Where in the text of a translation unit this is, counted from 1; None if in some other file. `name` is the
        file that the text stands in; its #line directives may say otherwise."""
        at, number = name, 0
        for i, text in enumerate(source_lines(source), 1):
            number += 1
            if (at, number) == (self.file, self.line):
                return i
            if match := re.match(r'#line (\d+) "(.*)"$', text):
                number, at = int(match[1]) - 1, match[2]
        return None


_MESSAGE = re.compile(
    r"\S.*?[:)]: (?:(?:fatal )?error|warning|remark|note)|.* (?:error|errors) detected in|In file included"
)
_LOCATION = re.compile(r"([^\n:(]+?)(?:\((\d+)\)|:(\d+)(?::\d+)?): (?:fatal )?error(?: #\S+)?: (.*)$")


def errors(output: str) -> list[CompileError]:
    """Of nvcc's front end or g++, in their order, up to one that is not understood."""
    found: list[CompileError] = []
    lines = output.splitlines()
    for i, line in enumerate(lines):
        if match := _LOCATION.match(line):
            # What belongs to it: up to an empty line (nvcc) or the next message, and where g++ says it is.
            end = next(
                (j for j in range(i + 1, len(lines)) if not lines[j].strip() or _MESSAGE.match(lines[j])), len(lines)
            )
            context = [other for other in lines[max(0, i - 3) : i] if re.match(r".*: In |.*required from", other)]
            block = "\n".join(context + lines[i:end])
            found.append(CompileError(match[1], int(match[2] or match[3]), match[4].strip(), block))
        elif re.search(r"\b(?:error|fatal)\b", line) and not (found and line in found[-1].block):
            break
    return found


def is_certain(error: CompileError, source: str, name: str, full: Headers, check: Callable[[], Headers | None]) -> bool:
    """`source`: the translation unit's own text, in the file `name`; `full`, `check`: what all headers say, and what
    those do that the error was seen with."""
    line = error.line_in(source, name)
    if line is None or re.search(r"instantiat|required (?:from|by)|detected during|argument-dependent", error.block):
        return False  # in a header, or deep in a template, where other declarations may be at play than those named
    if not _same_conditionals(source, full):
        return False
    if match := _UNDECLARED.search(error.message):
        word = next(filter(None, match.groups()))
        # Qualified, or called (its arguments' namespaces are searched), or in a source with namespaces of its own.
        anywhere = "member" in error.message or re.search(rf"::\s*{word}\b|\b{word}\s*[(<]|\bnamespace\b", source)
        visible = full.declared | full.friends if anywhere else full.unqualified
        return word not in full.macros and word not in visible
    if match := _NO_MEMBER.search(error.message):
        word = next(filter(None, match.groups()))
        return word not in full.macros and word not in full.words
    syntax, types = _SYNTAX.search(error.message), _TYPES.search(error.message)
    if not (syntax or types) or (few := check()) is None:
        return False
    named: set[str] = set()
    if types:
        named = _words([*re.findall(r'"(.*?)"', error.message), *re.findall(r"operand types are: (.*)", error.block)])
    same_types = all(full.words.get(w, 0) == few.words.get(w, 0) for w in named - _KEYWORDS)
    return same_types and _same_words("\n".join(source_lines(source)[:line]), full, few)


def _same_conditionals(source: str, full: Headers) -> bool:
    """Whether the source's own #if lines choose the same with all headers."""
    conditions = re.findall(r"^[ \t]*#[ \t]*(?:if|elif|ifdef|ifndef)\b((?:[^\n]*\\\n)*[^\n]*)", source, re.M)
    names = _words(conditions) - _DECIDED_BY_COMPILER - {"defined"}
    return not any(name in full.macros or name.startswith("__has_") for name in names)


def _same_words(text: str, full: Headers, check: Headers) -> bool:
    """Whether each word of the text that all headers know is known to the few as well, macros as macros."""
    words = _words([re.sub(r"^[ \t]*#[ \t]*(?:include|line)\b.*", "", text, flags=re.M)])
    known = all(w in check.words for w in words if w in full.words)
    # The check's own version of it takes the module's body for a template's.
    return known and "PYBIND11_MODULE" not in words and all(w in check.macros for w in words if w in full.macros)


_WORD = re.compile(r"[A-Za-z_]\w*")


def _words(texts: Iterable[str]) -> set[str]:
    return {w for text in texts for w in _WORD.findall(text)}


_KEYWORDS = {
    "bool", "char", "const", "double", "float", "int", "long", "short", "signed", "unsigned", "void", "volatile",
}  # fmt: skip
