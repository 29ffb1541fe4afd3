"""Candidates as a command line or a manifest names them."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.errors import UsageError
from harness.types import Backend, Candidate
from problems.catalogue import Entry

REFERENCE = "reference"
"""In place of a file: the problem's own."""


def read_candidate(file: str, backend: Backend, entry: Entry | None) -> Candidate:
    """The candidate in a file, in stdin (`-`), or the problem's `reference`. UsageError if it cannot be read or is not
    UTF-8; the rest is the harness's to judge."""
    if file == REFERENCE:
        if entry is None:
            raise UsageError("say of which problem the reference is meant")
        from harness.evaluate import reference_candidate

        return reference_candidate(entry)
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return Candidate(source=content.decode("utf-8"), backend=backend)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start})") from None
