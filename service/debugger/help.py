"""What the keys do, in a line and in full."""

from __future__ import annotations

from rich.text import Text

KEYS = (
    ("?", "help", "help"),
    ("e", "edit", "edit"),
    ("c", "compile", "tool('compile')"),
    ("r", "run", "tool('run_benchmark')"),
    ("i", "inspect", "tool('inspect_failure')"),
    ("p", "profile", "tool('profile')"),
    ("a", "ask", "ask"),
    ("b", "branch", "branch"),
    ("d", "diff", "diff"),
    ("q", "quit", "leave"),
    ("h", "hint", "hint"),
    ("s", "save", "save"),
    ("v", "view", "view"),
    ("R", "check", "check"),
    ("w", "task", "task"),
    ("space", "mark", "mark"),
    ("z", "zoom", "zoom"),
    ("C", "case", "with('run_benchmark', 'case', 'Run at which case (odd, tiny, ...)')"),
    ("P", "counters", "with('profile', 'kernel', 'Counters of which kernel (part of its name)')"),
    ("t", "theme", "theme"),
)
"""Key, word, action of the screen. Most wanted first: a narrow terminal shows as many as fit."""

HELP = """\
The candidate is a file. Edit it here (e), or in an IDE:
  {file}
What it holds is recorded as an attempt before the next call. Calls,
replies, hints, costs: everything is in the run's record.

  e  edit in $VISUAL or $EDITOR       c  compile (no device)
  r  run_benchmark: check, time       R  check, no timing
  C  run_benchmark at another case    P  profile with a kernel's counters
  i  inspect_failure: why it failed   p  profile: where the time goes
  a  ask the model for one step       h  the same, and say something first
  w  the task, as a model is told it  s  save the candidate elsewhere
  q  leave, graded or to go on later

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
    for key, what, _ in KEYS:
        if len(line) + len(f" {key} {what}") > width + (not line):
            break
        line.append(" " if line else "").append(key, style="bold").append(f" {what}", style="dim")
    return line
