"""What the keys do, in a line and in full."""

from __future__ import annotations

from rich.text import Text

_KEYS = (
    ("?", "help"), ("e", "edit"), ("c", "compile"), ("r", "run"), ("i", "inspect"), ("p", "profile"), ("a", "ask"),
    ("b", "branch"), ("d", "diff"), ("q", "quit"), ("h", "hint"), ("s", "save"), ("v", "view"), ("R", "check"),
    ("space", "mark"), ("z", "zoom"), ("t", "theme"),
)  # fmt: skip
"""Most wanted first: a narrow terminal shows as many as fit."""

HELP = """\
The candidate is a file. Edit it here (e), or in an IDE:
  {file}
What it holds is recorded as an attempt before the next call. Calls,
replies, hints, costs: everything is in the run's record.

  e  edit in $VISUAL or $EDITOR       c  compile (no device)
  r  run_benchmark: check, time       R  check, no timing
  i  inspect_failure: why it failed   p  profile: where the time goes
  a  ask the model for one step       h  the same, and say something first
  s  save the candidate elsewhere     q  leave, graded or to go on later

Attempts (tab: next pane; arrows choose one):
  enter, v  what tools said of it, its text
  b         branch: take its text as the candidate
  space, d  mark one; difference to another, without a mark to the file

  escape  break off what is under way; once more leaves
  ctrl+c  the same; leaves also where nothing is under way
  z  the pane alone, and back         t  dark or light
  arrows, page up/down, home, end     move in a pane
"""


def keys(width: int) -> Text:
    """One line of at most `width` characters."""
    line = Text()
    for key, what in _KEYS:
        if len(line) + len(f" {key} {what}") > width + (not line):
            break
        line.append(" " if line else "").append(key, style="bold").append(f" {what}", style="dim")
    return line
