"""The editor of the person's choice, in the terminal that the debugger lends it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

_OTHERS = ("sensible-editor", "editor", "vim", "vi", "nano")
"""Looked for where the environment names none."""


def edit(path: Path) -> str:
    """Let `$VISUAL`, else `$EDITOR`, edit a file, and wait until it is closed. Returns what went wrong, or ""."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    command = command or [found for name in _OTHERS if (found := shutil.which(name))][:1]
    if not command:
        return "no editor: set $VISUAL or $EDITOR"
    # Ctrl-C in the editor is the editor's. A handler, unlike ignoring, is not inherited.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.run([*command, str(path)], check=False).returncode
    except OSError as error:
        return f"cannot start {command[0]}: {error.strerror}"
    finally:
        signal.signal(signal.SIGINT, before)
    return f"{command[0]} ended with exit code {code}" if code else ""
