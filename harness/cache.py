"""Compiled artefacts by content: built once, published by atomic rename, shared by all ranks and later runs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


def root() -> Path:
    """`$RINGSMITH_CACHE`, or `ringsmith` under the user's cache folder."""
    if given := os.environ.get("RINGSMITH_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringsmith"


def key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def tool_identity(path: str) -> tuple[str, int, int]:
    """What changes when a compiler is updated, without running it."""
    stat = Path(path).resolve().stat()
    return (path, stat.st_size, stat.st_mtime_ns)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    # flock dies with its owner: a killed build never blocks the next one.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """Folder `<root>/<kind>/<name>`, made by `make(folder)` if it is not there. Processes that want the same wait for
    the first; if `make` raises, nothing is published."""
    parent = root() / kind
    target = parent / name
    if target.exists():
        return target
    parent.mkdir(parents=True, exist_ok=True)
    with _locked(parent / f"{name}.lock"):
        if not target.exists():
            for left in parent.glob(f".{name}.*"):  # by a builder that was killed
                shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=parent))
            try:
                make(folder)
                folder.chmod(0o755)  # mkdtemp's 0700 would hide it from a jailed user
                folder.rename(target)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return target
