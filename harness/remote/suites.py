"""A suite of problems as it travels to another machine. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import UsageError
from harness.remote.messages import Suite
from problems import suites

_PATH = re.compile(r"(?:[\w-][\w.-]*/){0,3}[\w-][\w.-]*\.py")


def pack(path: str) -> Suite:
    """Raises ProblemError if there is no suite, UsageError if a file cannot be read as UTF-8."""
    root, found = suites.files(path)
    try:
        if root.is_file():
            return Suite(name=root.name, is_file=True, files={root.name: root.read_text(encoding="utf-8")})
        texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in found}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"suite {path}: {error}") from None
    return Suite(name=root.name, is_file=False, files=texts)


def unpack(suite: Suite, folder: Path) -> Path:
    """Write the files into a folder of their own in `folder`; returns what to call the suite there. Raises UsageError
    for a name that would leave it."""
    for name in suite.files:
        if not _PATH.fullmatch(name):
            raise UsageError(f"a suite's file cannot be called {name!r}")
    if not suite.files or (suite.is_file and len(suite.files) != 1):
        raise UsageError(f"a suite cannot have {len(suite.files)} files")
    home = folder / suite.digest
    try:
        for name, text in suite.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text, encoding="utf-8")
    except (OSError, UnicodeEncodeError) as error:
        raise UsageError(f"the suite's files cannot be written: {error}") from None
    return home / next(iter(suite.files)) if suite.is_file else home
