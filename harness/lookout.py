"""Notices a candidate that takes hold of its callers' frames or of all objects of its process.

What a timed block is to do lies there: which outputs are audited, which inputs change and where, the times so far. Code
that reads it can be right where it is looked at and idle elsewhere. Python tells of each such step (PEP 578), and
nothing in a kernel asks for one. Steps of libraries on their own behalf (`namedtuple`, `logging`, Triton, wherever they
are installed) do not count: only code of the candidate's file does, and code that was made from a text. Compiled code
can look without a trace.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

_EVENTS = frozenset({
    "sys._getframe", "sys._current_frames", "sys._current_exceptions", "sys.settrace", "sys.setprofile",
    "gc.get_objects", "gc.get_referrers", "gc.get_referents",
})  # fmt: skip
_FRAMES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
"""Attributes that are frames; reading one is the event `object.__getattr__`."""
_NATIVE = ("PyEval_Get", "PyThreadState_Get", "PyGC_", "PyFrame_", "PyInterpreterState_")
"""Names of the interpreter's own functions, looked up by ctypes, that do the same."""
_LENSES = frozenset(
    code.co_filename for code in (inspect.stack.__code__, traceback.walk_tb.__code__, logging.warning.__code__)
)
_PASSING_ON = frozenset({"currentframe", "stack", "walk_stack", "walk_stack_generator", "walk_tb", "<lambda>"})
"""Functions of these files that hand frames to their caller."""
_get_frame, _get_ident = sys._getframe, threading.get_ident


class Lookout:
    """Begins with `begin`, for the rest of the process's life: what is hooked so cannot be unhooked."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._inside: set[int] = set()
        self._candidate = ""

    def begin(self, candidate: Path) -> None:
        """`candidate`: the file that is about to be imported."""
        self._candidate = str(candidate)
        sys.addaudithook(self._hook)

    def seen(self) -> list[str]:
        """The first steps that were noticed, each with its line."""
        return self._seen[:3]

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "object.__getattr__":
            if arguments[1] not in _FRAMES:
                return
            what = str(arguments[1])
        elif event == "ctypes.dlsym":
            if not str(arguments[1]).startswith(_NATIVE):
                return
            what = str(arguments[1])
        elif event in _EVENTS:
            what = event
        else:
            return
        thread = _get_ident()
        if thread in self._inside:  # this function's own steps
            return
        self._inside.add(thread)
        try:
            frame: FrameType | None = _get_frame(1)
            assert frame is not None
            if event == "ctypes.dlsym":  # asked for by ctypes for somebody
                while frame is not None and "ctypes" in frame.f_code.co_filename:
                    frame = frame.f_back
            elif frame.f_code.co_filename in _LENSES and frame.f_code.co_name in _PASSING_ON:
                frame = frame.f_back
            if frame is not None and self._its_own(frame.f_code.co_filename) and len(self._seen) < 8:
                self._seen.append(f"{what} in line {frame.f_lineno}")
        finally:
            self._inside.discard(thread)

    def _its_own(self, file: str) -> bool:
        return file == self._candidate or (file.startswith("<") and not file.startswith("<frozen "))
