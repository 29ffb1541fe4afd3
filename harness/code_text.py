"""What of a candidate's source is code: identifiers and the contents of strings, without comments and docstrings.

Strings are put together as Python would: adjacent literals, `+`, f-strings and `"".join([...])` of constants. A string
may hold C++, CUDA or PTX, so comments of C++ are left out of it.
"""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from problems.parsing import parse

_HOLE = "\0"  # stands for a part that is not a constant: no name goes across it
# A source can be made to grow without end, and this runs in the supervisor.
_MAX_CHARACTERS, _MAX_MACROS, _MAX_DOTS = 1_000_000, 100, 4


@dataclass(frozen=True)
class Piece:
    """An identifier, or a string without comments."""

    text: str
    first_line: int
    last_line: int

    def line(self, offset: int) -> int:
        """Line of the source, counted from 1, that a place in the text stands in. (Where a line break was written as an
        escape it is the string's last.)"""
        return min(self.first_line + self.text.count("\n", 0, offset), self.last_line)


def source_lines(source: str) -> list[str]:
    """As Python and the compilers count them. (`str.splitlines` also ends a line at form feeds and the like.)"""
    lines = re.split(r"\r\n|\r|\n", source)
    return lines if lines[-1] else lines[:-1]


@functools.lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """Its tree, not to be changed. Raises SyntaxError, ValueError, RecursionError or MemoryError."""
    # As bytes: the encoding that the source declares for itself decides what is a comment.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes
        return parse(source.encode())


@functools.lru_cache(maxsize=2)  # several ask about the same candidate
def pieces(source: str) -> tuple[Piece, ...]:
    """All that counts. A source that Python cannot parse, and so would not run, is one piece."""
    try:
        # A kernel may stand in a docstring that the code reads.
        return tuple(_pieces(parsed(source), docstrings="__doc__" in source or "getdoc" in source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        lines = source.split("\n")
        text = "\n".join(_without_hash(line) for line in lines)
        return tuple(Piece(t, 1, len(lines)) for t in _variants(text, _Room()))


_DIRECTIVE = r"(?:include|define|if|ifdef|ifndef|elif|else|endif|undef|pragma|error|line)\b"
_HASH_LINE = re.compile(rf"[ \t]*#(?![ \t]*{_DIRECTIVE})")
_HASH = re.compile(r"(?<=[ \t])# ")


def _without_hash(line: str) -> str:
    """A line without its comment of Python: what has a quote behind it may stand in a string."""
    if _HASH_LINE.match(line):
        return ""
    comment = _HASH.search(line, max(line.rfind('"'), line.rfind("'")) + 1)
    return line[: comment.start()] if comment else line


@dataclass
class _Room:
    """How many characters macros and separators may still add, in all strings of a source together."""

    left: int = _MAX_CHARACTERS


def _pieces(tree: ast.Module, *, docstrings: bool) -> Iterator[Piece]:
    room = _Room()
    waiting: list[tuple[ast.AST, int]] = [(tree, 1)]
    while waiting:
        node, line = waiting.pop()
        line = getattr(node, "lineno", line)
        last = getattr(node, "end_lineno", None) or line
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and not docstrings:
            continue  # a string as a statement does nothing: a comment
        if _is_text(node):
            holes: list[ast.AST] = []
            for text in _variants(_text(node, holes, room), room):
                yield Piece(text, line, last)
            waiting += [(hole, line) for hole in holes]
            continue
        yield from (Piece(name, last, last) for name in _names(node))
        if command := _command(node, room):
            yield Piece(command, line, last)
        waiting += [(child, line) for child in ast.iter_child_nodes(node)]


def _names(node: ast.AST) -> list[str]:
    """Identifiers that stand in a node itself; `a.b.c` and `from a.b import c` as that dotted name."""
    if isinstance(node, ast.Constant):
        return []
    if isinstance(node, ast.Attribute):
        parts: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute) and len(parts) < _MAX_DOTS:
            parts.append(inner.attr)
            inner = inner.value
        return [".".join([*([inner.id] if isinstance(inner, ast.Name) else []), *reversed(parts)])]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    fields = [v for _, value in ast.iter_fields(node) for v in (value if isinstance(value, list) else [value])]
    return [field for field in fields if isinstance(field, str)]


def _is_text(node: ast.AST) -> bool:
    """Whether `_text` knows what to do with it."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add)
    return isinstance(node, ast.JoinedStr) or _joined(node) is not None


def _joined(node: ast.AST) -> tuple[ast.expr, list[ast.expr]] | None:
    """Separator and parts of `separator.join([parts])`."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "join"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.List | ast.Tuple)
    ):
        return node.func.value, node.args[0].elts
    return None


def _text(node: ast.AST, holes: list[ast.AST], room: _Room) -> str:
    """The string that an expression makes; what is not constant becomes a hole and is added to `holes`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value if isinstance(node.value, str) else node.value.decode("latin-1")
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value, holes, room) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, holes, room)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        terms: list[ast.expr] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add):  # thousands are no recursion
            terms.append(left.right)
            left = left.left
        return "".join(_text(term, holes, room) for term in (left, *reversed(terms)))
    if (joined := _joined(node)) is not None:
        separator, parts = _text(joined[0], holes, room), [_text(part, holes, room) for part in joined[1]]
        if len(separator) * len(parts) >= room.left:
            return _HOLE.join([separator, *parts])
        room.left -= len(separator) * len(parts)
        return separator.join(parts)
    holes.append(node)
    return _HOLE


def _command(node: ast.AST, room: _Room) -> str:
    """The words of a list or of a call's arguments as a shell would get them; empty if there are fewer than two."""
    words = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.List | ast.Tuple) else []
    texts = [_text(word, [], room) for word in words]
    return " ".join(texts) if sum(text != _HOLE for text in texts) > 1 else ""


def _variants(text: str, room: _Room) -> list[str]:
    """A string without comments of C++; and, if that is another, with adjacent literals joined and names pasted."""
    plain = _without_comments(_joined_lines(text))
    pasted = re.sub(r'(?<!\\)"\s*"', "", _pasted(plain, room))
    return [plain] if pasted == plain else [plain, pasted]


def _joined_lines(text: str) -> str:
    """With continued lines made one; the line breaks go after it, so that later lines keep their numbers."""
    return re.sub(
        r"^(?:[^\n]*\\\r?\n)+[^\n]*",
        lambda m: re.sub(r"\\\r?\n", "", m[0]) + "\n" * m[0].count("\n"),
        text,
        flags=re.M,
    )


_TOKEN = re.compile(
    r'R"([^()\\ \n]{0,16})\(.*?(?:\)\1"|\Z)|"(?:\\.|[^"\\\n])*"?'
    r"|(?<![\w$])[0-9](?:'?[\w.])*|'(?:\\.|[^'\\\n])*'?"
    r"|(?<!:)//[^\n]*|/\*.*?(?:\*/|\Z)",
    re.S,
)  # a // after a colon is an address; a literal that is not closed ends with its line, as for a preprocessor


def _without_comments(text: str) -> str:
    return _TOKEN.sub(lambda m: " " + "\n" * m[0].count("\n") if m[0][0] == "/" else m[0], text)


def _pasted(text: str, room: _Room) -> str:
    """With `a ## b` joined, and the macros that paste their arguments filled in."""
    if "##" not in text:
        return text
    macros = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^()\n]*)\)([^\n]{0,100}##[^\n]{0,100})$", text, re.M)
    for name, (parameters, body) in list({name: rest for name, *rest in macros}.items())[:_MAX_MACROS]:
        names = [parameter.strip() for parameter in parameters.split(",")]

        def fill(match: re.Match[str], names: list[str] = names, body: str = body) -> str:
            if room.left <= 0:
                return match[0]
            values = dict(zip(names, (value.strip() for value in match[1].split(",")), strict=False))
            filled = re.sub(r"\w+", lambda word: values.get(word[0], word[0]), body)
            room.left -= len(filled)
            return filled

        if room.left <= 0:
            break
        text = re.sub(rf"(?<!define )\b{name}\(([^()]{{0,100}})\)", fill, text)
    return re.sub(r"(?<![ \t])[ \t]*##[ \t]*", "", text)
