"""Keeps what was built for a candidate: copied into the private cache of its processes before it is loaded, and back
afterwards. Imports no torch.

Processes that import a candidate write to a cache of their own set only. What they leave there may be anything, so it
is given to nobody but the same candidate. Only what loading needs is kept: `<kind>/<entry>/<file>` of the kinds below.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from harness import cache
from harness.errors import HarnessError

_KINDS = {"kit": "*.so", "extension": "*.so", "triton": "*"}
_MAX_BYTES, _MAX_FILES = 256 << 20, 4096
"""Of one candidate."""
_MAX_TOTAL_BYTES = 10 << 30
"""Of all; those that were longest not used are removed."""
_GROUP = "__grp__"  # Triton's lists of the files of an entry, by absolute path
_MAX_GROUP_BYTES = 1 << 20
"""Of such a list, which is a few kB long; given back it is longer by as much as the folder's name is than its mark."""
_ANYWHERE = b"@RINGSMITH_CACHE@"


def stock(folder: Path, candidate_hash: str) -> None:
    """Copy what is kept for a candidate into `folder`, the cache of processes that have not imported it yet.

    Does nothing if there is no such folder. Raises HarnessError if it cannot be written."""
    kept = _place(candidate_hash)
    if not (folder.is_dir() and kept.is_dir()):
        return
    owner = folder.stat()
    with contextlib.suppress(OSError):
        os.utime(kept)  # used just now
    for source in _files(kept):
        target = folder / source.relative_to(kept)
        try:
            data = source.read_bytes()
        except OSError:
            continue  # removed meanwhile: it will be built again
        if target.name.startswith(_GROUP):
            data = data.replace(_ANYWHERE, os.fsencode(folder))
        try:
            for parent in (target.parent.parent, target.parent):
                if not parent.exists():
                    parent.mkdir()
                    _give(parent, 0o755, owner)
            target.write_bytes(data)
            _give(target, 0o755 if target.suffix == ".so" else 0o644, owner)
        except OSError as error:
            raise HarnessError(f"cannot write to the build cache {folder}: {error.strerror}") from None


def harvest(folder: Path, candidate_hash: str) -> None:
    """Copy what is new in `folder` to what is kept for a candidate, whose processes may still run and change it.

    Whatever they made of the folder is passed over. Raises HarnessError if the store cannot be written."""
    kept = _place(candidate_hash)
    there = [_size(path) for path in _files(kept)]
    room, files, stored = _MAX_BYTES - sum(there), _MAX_FILES - len(there), False
    for name, descriptor in _found(folder):
        target = kept / name
        if files <= 0 or target.exists():
            continue
        data = _read(descriptor, min(room, _MAX_GROUP_BYTES) if target.name.startswith(_GROUP) else room)
        if data is None:
            continue
        if target.name.startswith(_GROUP):
            data = data.replace(os.fsencode(folder), _ANYWHERE)
        try:
            _publish(target, data)
        except FileNotFoundError:
            continue  # another session has just removed this candidate
        except OSError as error:
            raise HarnessError(f"cannot write to the build cache {cache.root()}: {error.strerror}") from None
        room, files, stored = room - len(data), files - 1, True
    if stored:
        with contextlib.suppress(OSError):
            os.utime(kept)
        _trim(kept)


def _place(candidate_hash: str) -> Path:
    return cache.root() / "candidates" / candidate_hash


def _files(kept: Path) -> list[Path]:
    """Of one candidate, those that list others last."""
    found = (path for path in kept.glob("*/*/*") if not path.name.startswith("."))
    return sorted(found, key=lambda path: path.name.startswith(_GROUP))


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):  # removed by another session meanwhile
        return path.lstat().st_size
    return 0


def _give(path: Path, mode: int, owner: os.stat_result) -> None:
    path.chmod(mode)
    with contextlib.suppress(PermissionError):  # not root: everything is one user's
        os.chown(path, owner.st_uid, owner.st_gid)


# -- reading what a candidate has left: never through a symbolic link, by descriptors that cannot be exchanged ---------

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not make us wait


@contextlib.contextmanager
def _opened(name: str | Path, flags: int, parent: int | None = None) -> Iterator[int | None]:
    """A descriptor, or None if there is nothing of that kind."""
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
    except (OSError, ValueError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _found(folder: Path) -> Iterator[tuple[str, int]]:
    """Name and descriptor of what may be kept."""
    looks = iter(range(4 * _MAX_FILES))
    with _opened(folder, _FOLDER) as top:
        for kind in _KINDS if top is not None else ():
            with _opened(kind, _FOLDER, top) as entries:
                for entry in _names(entries):
                    if next(looks, None) is None:
                        return
                    with _opened(entry, _FOLDER, entries) as files:
                        for name in _names(files):
                            if next(looks, None) is None:
                                return
                            if fnmatch.fnmatchcase(name, _KINDS[kind]):
                                with _opened(name, _FILE, files) as descriptor:
                                    if descriptor is not None:
                                        yield f"{kind}/{entry}/{name}", descriptor


def _names(descriptor: int | None) -> list[str]:
    if descriptor is None:
        return []
    with contextlib.suppress(OSError), os.scandir(descriptor) as entries:
        # What begins with a point is being made, by us or by Triton.
        names = [entry.name for entry in islice(entries, _MAX_FILES) if not entry.name.startswith((".", "tmp."))]
        return sorted(names, key=lambda name: name.startswith(_GROUP))
    return []


def _read(descriptor: int, limit: int) -> bytes | None:
    """A regular file's contents; None if it is not one, or larger than `limit`."""
    with contextlib.suppress(OSError):
        about = os.fstat(descriptor)
        # A second name may be that of a file which only we can read.
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and about.st_size <= limit:
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(limit + 1)
            return data if len(data) <= limit else None
    return None


# -- writing our own ---------------------------------------------------------------------------------------------------


def _publish(target: Path, data: bytes) -> None:
    """Whole or not at all."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(descriptor, 0o755 if target.suffix == ".so" else 0o644)
        os.rename(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _trim(just_used: Path) -> None:
    """Remove the candidates longest not used until the rest is small enough."""
    found: list[tuple[float, int, Path]] = []
    for kept in just_used.parent.iterdir():
        with contextlib.suppress(OSError):  # removed by another session meanwhile
            found.append((kept.stat().st_mtime, sum(map(_size, _files(kept))), kept))
    total = sum(size for _, size, _ in found)
    for _, size, kept in sorted(found):
        if total <= _MAX_TOTAL_BYTES:
            break
        if kept != just_used:
            shutil.rmtree(kept, ignore_errors=True)
            total -= size
