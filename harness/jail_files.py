"""What of this machine's files is visible in a jail: an allow-list, all of it read-only."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from harness import jail_process, machine

PROJECT = Path(__file__).resolve().parent.parent
_SYSTEM = ("/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (*("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "passwd", "group", "localtime", "nccl.conf"),)
ETC = ".etc"
"""In a set's folder: files of /etc that are the jail's own."""

_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_NOT_WHOLE = [
    Path(name) for name in ("/", "/dev", "/dev/shm", "/etc", "/home", "/proc", "/run", "/sys", "/tmp", "/var")
]
_INSTALLED = ("site-packages", "dist-packages")
_OURS = ("agent", "problems", "prompts", "runs", "service", "tests", "tools")
"""What lies beside `harness` and is nobody's business inside: references, records, the agent's logs."""


@dataclass(frozen=True)
class Visible:
    """Paths that are the same inside and outside."""

    read_only: tuple[Path, ...]
    """Folders and files, a folder before what is mounted below it."""
    masked_below: dict[Path, tuple[Path, ...]] = field(default_factory=dict)
    """Of a folder in `read_only`: folders inside it that are covered with nothing."""
    links: tuple[tuple[str, str], ...] = ()
    """Symbolic link and what it points to."""
    copied: tuple[str, ...] = ()
    """Small files of /etc."""
    devices: tuple[Path, ...] = ()


def write_etc(scratch: Path) -> None:
    """Files of /etc that differ inside: names of hosts come from a file, never from the network that is not there
    (torch's store would wait 5 s for it)."""
    folder = scratch / ETC
    folder.mkdir()
    names = f"localhost {jail_process.HOSTNAME}"
    texts = {
        "hosts": f"127.0.0.1 {names}\n::1 {names}\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path == folder else 0o644)


def find_visible(devices: bool) -> Visible:
    """The allow-list now. `devices`: the GPUs' nodes as well."""
    links = tuple((name, os.readlink(name)) for name in _SYSTEM if os.path.islink(name))
    wanted = [Path(name) for name in _SYSTEM if os.path.isdir(name) and not os.path.islink(name)]
    wanted += [Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix), *_python_folders(), *_libraries()]
    wanted += [Path(__file__).resolve().parent]
    folders: list[Path] = []
    masks: dict[Path, list[Path]] = {}
    for path in sorted(set(wanted)):  # sorted: a folder comes before what lies in it
        parent = _container(path, folders)
        if parent is None or any(path.is_relative_to(mask) for mask in masks.get(parent, ())):
            folders.append(path)
            if hidden := _to_hide(path):
                masks[path] = hidden
    below = [mount for folder in folders for mount in _mounts_below(folder, masks.get(folder, []))]
    nodes = [Path("/dev", name) for name in _NODES]
    if devices:
        nodes += sorted(Path("/dev").glob("nvidia*"))
    read_only = sorted({*folders, *below})
    if os.path.isdir("/sys"):
        read_only.append(Path("/sys"))
        # Without root all that is mounted below comes along, and a user's processes may freeze the user's groups.
        masks[Path("/sys")] = [path for path in [Path("/sys/fs/cgroup")] if path.is_dir()]
    return Visible(
        read_only=tuple(read_only),
        masked_below={folder: tuple(hidden) for folder, hidden in masks.items()},
        links=links,
        copied=tuple(f"/etc/{name}" for name in _ETC if os.path.lexists(f"/etc/{name}")),
        devices=tuple(node for node in nodes if node.exists()),
    )


def _container(path: Path, folders: list[Path]) -> Path | None:
    """The innermost of `folders` that holds `path`."""
    return max((f for f in folders if path.is_relative_to(f)), key=lambda f: len(f.parts), default=None)


def _python_folders() -> list[Path]:
    """Where modules are imported from. Not the project (only its `harness`), nor any other copy of it, nor what would
    show a home or the project as a whole."""
    found = []
    for entry in sys.path:
        path = Path(entry)
        if not path.is_absolute() or not path.is_dir():
            continue
        copy = (path / "harness" / "forkserver.py").exists() and path.name not in _INSTALLED
        if not copy and not path.is_relative_to(PROJECT) and _harmless(path):
            found.append(path)
    return found


def _libraries() -> list[Path]:
    """The CUDA toolkit, what the loader is told to search, and ThunderKittens."""
    nvcc = shutil.which("nvcc")
    named = [os.environ.get(name) for name in ("CUDA_HOME", machine.KITTENS_VARIABLE)]
    named += [str(Path(nvcc).resolve().parent.parent) if nvcc else None]
    named += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    paths = [Path(name) for name in named if name]
    return [path for path in paths if path.is_absolute() and path.is_dir() and _harmless(path)]


def _harmless(path: Path) -> bool:
    """Not a folder of the system that is made anew inside or left out, nor one that holds the project or a home."""
    return path.resolve() not in _NOT_WHOLE and not any(
        private.is_relative_to(path.resolve()) for private in (PROJECT, Path.home())
    )


def _to_hide(folder: Path) -> list[Path]:
    """What must be covered once a folder is visible."""
    if PROJECT.name in _INSTALLED:
        return [PROJECT / name for name in _OURS if (PROJECT / name).is_dir() and PROJECT.is_relative_to(folder)]
    return [PROJECT] if PROJECT.is_relative_to(folder) else []


def _mounts_below(folder: Path, masks: list[Path]) -> list[Path]:
    """What is mounted below a folder (a container's driver libraries, file by file): bound one by one, so that each is
    read-only. Covered ones are left out."""
    found = []
    for line in _read_mounts():
        path = Path(line)
        if path != folder and path.is_relative_to(folder) and not any(path.is_relative_to(m) for m in masks):
            try:
                kind = path.stat().st_mode
            except OSError:
                continue
            if stat.S_ISDIR(kind) or stat.S_ISREG(kind):
                found.append(path)
    return found


def _read_mounts() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    points = (line.split(" ")[4] for line in lines)
    return [
        p.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\") for p in points
    ]
