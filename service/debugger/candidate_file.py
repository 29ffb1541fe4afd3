"""The file that a person edits, in whatever editor, while the debugger looks at it."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import UsageError


class CandidateFile:
    """Looked at by its time and size, so that a look every quarter of a second costs nothing. Used from two threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault = ""
        """Why it could not be read last; empty if it could."""
        self._text = ""
        self._seen: tuple[int, int, int] | None = None

    def exists(self) -> bool:
        return self.path.is_file()

    def read(self) -> str:
        """Its text; the last one known where it is gone or is no text (`fault` says so)."""
        try:
            state = os.stat(self.path)
            seen = (state.st_mtime_ns, state.st_size, state.st_ino)
            if seen != self._seen:
                self._text, self._seen = self.path.read_bytes().decode(), seen
            self.fault = ""
        except OSError as error:
            self.fault = f"cannot read {self.path}: {error.strerror}"
        except UnicodeDecodeError as error:
            self.fault = f"{self.path} is not UTF-8 text: {error.reason} at byte {error.start}"
        return self._text

    def write(self, text: str) -> None:
        """Raises UsageError if the disk refuses."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(text.encode())
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror}") from None
        self._seen = None
