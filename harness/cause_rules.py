"""How a known cause is written down, and how it is looked for in an error's text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One known cause. A table is tried from its top: special cases stand before general ones."""

    pattern: str
    """Regular expression to be found in the error's line. Its named groups may be used in `text`; `name2` is the group
    `name` in another alternative."""
    cause: str
    """Two or three plain words that tables can count."""
    text: str
    """What it means and what to do, one sentence without a full stop. `{like}` becomes `; did you mean `x`?` if a name
    like that of the group `name` is known."""
    certain: bool = True
    """Whether the line alone proves it."""
    source: str = ""
    """Regular expression that the candidate's text must match as well."""
    printed: str = ""
    """Regular expression of a line that the rank printed and that belongs to the evidence."""

    def said(self, printed: str, error: str) -> str:
        """The line of what a rank printed that belongs to the evidence; "" if there is none."""
        pattern = self.printed or ("" if re.search(self.pattern, error) else self.pattern)
        lines = (line.strip()[:400] for line in printed.splitlines() if pattern)
        return next((line for line in lines if re.search(pattern, line)), "")


@dataclass(frozen=True)
class Known:
    """A rule that an error matches."""

    rule: Rule
    text: str
    name: str
    """What the group `name` matched."""


def find(rules: Iterable[Rule], error: str, source: str, names: Sequence[str] = ()) -> Known | None:
    """The first rule that the error matches. `names` are known ones, for `{like}`."""
    for rule in rules:
        match = re.search(rule.pattern, error)
        if match is not None and re.search(rule.source, source):
            groups = _groups(match)
            name = groups.get("name", "")
            like = _like(name, groups.get("like", ""), names) if "{like}" in rule.text else ""
            return Known(rule, rule.text.format(**{**groups, "like": like}), name)
    return None


def _groups(match: re.Match[str]) -> dict[str, str]:
    """Named groups as they should be read; `name2` and `name3` are the group `name` in other alternatives."""
    found: dict[str, str] = {}
    for key, value in match.groupdict().items():
        key = key.rstrip("0123456789")
        found[key] = found.get(key) or _readable(value or "")
    return found


def _readable(text: str) -> str:
    """`_Z5scaleN2at6TensorE` as `scale`, and sizes in decimal."""
    if mangled := re.match(r"_Z(\d{1,3})(\w+)$", text):
        return mangled[2][: int(mangled[1])]
    return str(int(text, 16)) if re.fullmatch(r"0x[0-9a-f]{1,16}", text) else text


_LONGEST = 60
"""Characters of a name: comparing longer ones takes long, and whoever wrote them is not asking for a suggestion."""


def _like(name: str, said: str, names: Iterable[str]) -> str:
    """`said`: a name that the compiler or Python suggests."""
    close = [said] if said else difflib.get_close_matches(name[:_LONGEST], set(names) - {name}, n=1, cutoff=0.75)
    return f"; did you mean `{close[0]}`?" if close else ""
