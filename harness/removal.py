"""Removes what untrusted processes have left in a folder, whatever shape they gave it. Standard library only.

`shutil.rmtree` calls itself for every folder in a folder: a few thousand of them end it with a RecursionError.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_S = 120.0
"""Somebody may still be at work in there, where jails are none."""


def remove(folder: Path) -> None:
    """A folder and all that is in it, as far as that can be had; links are not followed. Raises nothing."""
    with contextlib.suppress(OSError), _opened(folder, None) as top:
        # Folders in folders are moved up, not gone into: no depth, and no more than two descriptors.
        fresh = (f"{secrets.token_hex(4)}.{number}" for number in itertools.count())
        kept: set[str] = set()
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline:
            names = [name for name in os.listdir(top) if name not in kept]
            if not names:
                break
            for name in names:
                if not _gone(name, top) and not _emptied(name, top, fresh):
                    kept.add(name)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def orphans(parent: Path) -> list[Path]:
    """Folders there of processes of ours that are gone: `ringsmith-PID-...`."""
    found = [(folder, folder.name.split("-")[1]) for folder in parent.glob("ringsmith-*")]
    return [folder for folder, pid in found if pid.isdigit() and not Path("/proc", pid).exists()]


def _gone(name: str, parent: int) -> bool:
    """Whether something that is no folder has been removed."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:  # a folder
        return False
    return True


def _emptied(name: str, parent: int, fresh: Iterator[str]) -> bool:
    """Whether a folder in `parent` has been removed, the folders in it now lying beside it."""
    try:
        with _opened(name, parent) as inner:
            for below in os.listdir(inner):
                if not _gone(below, inner):
                    os.rename(below, next(fresh), src_dir_fd=inner, dst_dir_fd=parent)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _opened(folder: str | Path, parent: int | None) -> Iterator[int]:
    try:
        descriptor = os.open(folder, _FOLDER, dir_fd=parent)
    except PermissionError:  # closed by its owner, who is this user where jails have no other
        os.chmod(folder, 0o700, dir_fd=parent)
        descriptor = os.open(folder, _FOLDER, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o700)  # what may be listed may not yet be emptied
        yield descriptor
    finally:
        os.close(descriptor)
