"""The jail of untrusted ranks: which layers this machine has, what is visible inside, and the program that makes it.

Well-kept programs make the namespaces and mounts: bubblewrap, else util-linux. They end in a process that does nothing,
pid 1 of the jail; ranks are forked from the warm fork server and join its namespaces (`jail_process.py`). One jail
holds all ranks of a set, and all die with its pid 1. Imports no torch.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from harness import control_group, jail_process, machine
from harness.errors import HarnessError
from harness.jail_files import ETC, Visible, find_visible, write_etc
from harness.types import Frozen, IsolationLevel

Program = Literal["bwrap", "unshare"]
ALWAYS = ("separate processes", "fixed environment")
_OF_NAMESPACE = {
    "pid": "own processes",
    "net": "own network",
    "ipc": "own ipc",
    "mount": "own files (read-only)",
}
_OF_DROP = {
    "uid": "uid nobody",
    "no_new_privileges": "no new privileges",
    "capabilities": "no capabilities",
    "limits": "limits",
}
LAYERS = (*ALWAYS, *_OF_NAMESPACE.values(), *_OF_DROP.values())
"""All that `strict` wants."""
USER_NAMESPACE = "user namespace"
"""Without root the others rest on it; it stands beside them, and there is no other uid."""
NO_JAIL = "no jail"

CONTROL_GROUP = "own control group"
"""Of use where it can be had, and not asked for by `strict`: in most containers it cannot."""

_TMP_SHARE, _SHM_SHARE = 8, 2
"""The jail's /tmp and /dev/shm hold at most one part in so many of the machine's memory."""
_TRIAL_S = 30.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Jail(Frozen):
    """What a set of ranks is confined by; nothing without `namespaces` and `drops`."""

    program: Program | None = None
    namespaces: tuple[str, ...] = ()
    """Of mount, pid, net, ipc, uts, user."""
    drops: tuple[str, ...] = ()
    """Of uid, no_new_privileges, capabilities, limits: what a process gives up before the candidate's code runs."""
    groups: Path | None = None
    """The folder in which control groups can be made."""
    lacking: dict[str, str] = Field(default_factory=dict)
    """Layer that was tried and does not work here -> why."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that are on, for `Environment.isolation`."""
        namespaces = [layer for name, layer in _OF_NAMESPACE.items() if name in self.namespaces]
        drops = [layer for name, layer in _OF_DROP.items() if name in self.drops]
        user = [USER_NAMESPACE] if "user" in self.namespaces else []
        group = [CONTROL_GROUP] if self.groups else []
        return (*ALWAYS, *namespaces, *user, *drops, *group) if namespaces or drops else (*ALWAYS, NO_JAIL)

    @property
    def on(self) -> bool:
        return bool(self.namespaces or self.drops)

    @property
    def own_files(self) -> bool:
        return "mount" in self.namespaces

    @property
    def uid(self) -> int | None:
        """User id of the processes inside; None = the supervisor's own."""
        return jail_process.NOBODY if "uid" in self.drops else None

    def settings(self, scratch: Path, devices: bool) -> dict[str, Any] | None:
        """What the fork server needs to put a set into a jail of its own; None without one. `scratch` is the set's
        folder, visible inside at its own path; `devices`: whether the GPUs are."""
        if not self.on:
            return None
        settings: dict[str, Any] = {"namespaces": list(self.namespaces), "drops": list(self.drops), "holder": None}
        group = self.group(scratch)
        settings["group"] = str(group) if group is not None else None
        if self.namespaces:
            visible = find_visible(devices) if self.own_files else None
            make = _bwrap if self.program == "bwrap" else _unshare
            settings["holder"] = {
                "argv": make(self.namespaces, scratch, visible),
                "environment": {"PATH": _PATH},
                "info": self.program == "bwrap",
            }
        return settings

    def group(self, scratch: Path) -> Path | None:
        """Where the control group of a set with this folder is, if it has one."""
        return self.groups and self.groups / f"{scratch.parent.name}-{scratch.name}"


def find(level: IsolationLevel) -> Jail:
    """The jail that this machine can have, found by trying. Raises HarnessError if `strict` cannot be had."""
    if level == "none":
        return Jail()
    found = tried()
    missing = [layer for layer in LAYERS if layer not in found.layers]
    if level == "strict" and missing:
        reasons = "; ".join(f"no {layer} ({found.lacking.get(layer, 'not there')})" for layer in missing)
        raise HarnessError(f"isolation strict cannot be had here: {reasons}")
    return found


@functools.cache
def tried(program: Program | None = None) -> Jail:
    """As many layers as work here with a program, or with the first that has them all. Takes 0.1 s, once a process."""
    programs: tuple[Program, ...] = (program,) if program else ("bwrap", "unshare")
    there = [name for name in programs if shutil.which(name, path=_PATH)]
    best = _without_namespaces("neither bubblewrap nor util-linux's unshare is installed")
    for name in there:
        jail = _try_program(name)
        if len(jail.layers) > len(best.layers) or not best.namespaces:
            best = jail
        if not best.lacking:
            break
    return _with_groups(best)


def _with_groups(jail: Jail) -> Jail:
    """Only where processes inside are somebody else's: who owns a group may let it go on, or fill it with others."""
    if jail.uid is None:
        return jail
    try:
        return jail.model_copy(update={"groups": control_group.find_home()})
    except OSError:
        return jail


def _wanted(namespaces: tuple[str, ...]) -> tuple[str, ...]:
    """Without root, every other namespace needs one of users."""
    return namespaces if os.geteuid() == 0 else ("user", *namespaces)


def _try_program(program: Program) -> Jail:
    everything = Jail(program=program, namespaces=_wanted(("mount", "pid", "net", "ipc", "uts")), drops=tuple(_OF_DROP))
    failed = _trial(everything)
    if "namespaces" in failed:
        # Each by itself, then those that work together. bubblewrap always makes one of mounts.
        lacking, working, always = {}, [], ("mount",) if program == "bwrap" else ()
        for name in ("mount", "pid", "net", "ipc", "uts"):
            alone = _trial(Jail(program=program, namespaces=_wanted(tuple(dict.fromkeys((*always, name)))), drops=()))
            if "namespaces" not in alone:
                working.append(name)
            elif name in _OF_NAMESPACE:
                lacking[_OF_NAMESPACE[name]] = alone["namespaces"]
        some = Jail(program=program, namespaces=_wanted(tuple(working)) if working else (), drops=tuple(_OF_DROP))
        failed = _trial(some)
        if "namespaces" in failed:
            return _without_namespaces(failed["namespaces"])
    else:
        some, lacking = everything, {}
    lacking |= {_OF_DROP[drop]: reason for drop, reason in failed.items()}
    return some.model_copy(
        update={"drops": tuple(drop for drop in some.drops if drop not in failed), "lacking": lacking}
    )


def _without_namespaces(reason: str) -> Jail:
    failed = _trial(Jail(drops=tuple(_OF_DROP)))
    lacking = dict.fromkeys(_OF_NAMESPACE.values(), reason)
    lacking |= {_OF_DROP[drop]: why for drop, why in failed.items()}
    return Jail(drops=tuple(drop for drop in _OF_DROP if drop not in failed), lacking=lacking)


def _trial(jail: Jail) -> dict[str, str]:
    """Put a process into a jail and have it look around. What failed -> why: `namespaces` or one of the drops."""
    said = ""
    try:
        with tempfile.TemporaryDirectory(prefix=f"ringsmith-{os.getpid()}-", dir="/dev/shm") as folder:
            prepare(Path(folder))
            os.chmod(folder, 0o755)
            settings = {"jail": jail.settings(Path(folder), devices=False), "readable": _must_be_readable()}
            # A process of its own: to join a namespace of users it must have no threads.
            done = subprocess.run(
                [sys.executable, "-I", "-S", jail_process.__file__],
                input=json.dumps(settings),
                capture_output=True,
                text=True,
                timeout=_TRIAL_S,
                env={name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
            )
            said = done.stderr.strip()[-300:]
            return {str(name): str(why) for name, why in json.loads(done.stdout.splitlines()[-1]).items()}
    except subprocess.TimeoutExpired:
        return {"namespaces": "the trial took too long"}
    except (OSError, ValueError, IndexError, AttributeError) as error:
        return {"namespaces": f"the trial failed: {said or error}"}


def _must_be_readable() -> list[str]:
    return [sys.prefix, sys.base_prefix, str(Path(__file__).parent)]


def prepare(scratch: Path) -> None:
    """What the holder of a jail with files of its own must find in a set's folder."""
    (scratch / jail_process.ROOT).mkdir(mode=0o755)
    write_etc(scratch)


# -- the programs ------------------------------------------------------------------------------------------------------


def _sizes() -> tuple[int, int]:
    memory = machine.cpu().memory_bytes
    return memory // _TMP_SHARE, memory // _SHM_SHARE


def _unshare(namespaces: tuple[str, ...], scratch: Path, visible: Visible | None) -> list[str]:
    flags = [f"--{name}" for name in namespaces]
    if "user" in namespaces:
        flags.append("--map-root-user")
    script = "set -e\nread -r pid rest < /proc/self/stat\n"  # /proc is still the one outside, which knows that number
    if visible is not None:
        script += _mount_script(scratch, visible, rbind="user" in namespaces)
    script += 'echo "ready $pid"\nexec cat\n'
    death = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv", path=_PATH) else []
    return [*death, "unshare", *flags, "--fork", "--kill-child", "sh", "-c", script]


def _mount_script(scratch: Path, visible: Visible, rbind: bool) -> str:
    """Shell commands that make the jail's root and change into it. All mounts by one process: forty take 20 ms."""
    root = scratch / jail_process.ROOT
    # Without root, what is mounted below a folder may not be uncovered: only the whole can be bound.
    bind = "rbind" if rbind else "bind"
    tmp_bytes, shm_bytes = _sizes()
    lines: list[tuple[Path | str, Path, str, str]] = []
    for path in visible.read_only:
        if path.is_dir():
            lines.append((path, path, "none", f"{bind},ro,nosuid,nodev,X-mount.mkdir"))
        else:
            lines.append((path, path, "none", f"{bind},ro,nosuid,nodev"))
        if path in visible.masked_below:
            lines += [("tmpfs", mask, "tmpfs", "size=1m,mode=755,nosuid,nodev") for mask in visible.masked_below[path]]
    lines += [(node, node, "none", f"{bind},X-mount.mkdir" if node.is_dir() else bind) for node in visible.devices]
    lines += [
        ("tmpfs", Path("/dev/shm"), "tmpfs", f"size={shm_bytes},mode=1777,nosuid,nodev"),
        ("tmpfs", Path("/tmp"), "tmpfs", f"size={tmp_bytes},mode=1777,nosuid,nodev"),
        ("proc", Path("/proc"), "proc", "nosuid,nodev,noexec"),
    ]
    # What lies below /tmp or /dev/shm comes after them.
    late = [line for line in lines if _below(line[1], ("/tmp", "/dev/shm"))]
    lines = [line for line in lines if line not in late] + late
    lines.append((scratch, scratch, "none", "bind,nosuid,nodev,X-mount.mkdir"))
    table = "\n".join(
        f"{_escaped(str(source))} {_escaped(f'{root}{target}')} {kind} {options} 0 0"
        for source, target, kind, options in lines
    )
    q = _quoted
    files = [node for node in visible.devices if not node.is_dir()]
    return f"""
mount -t tmpfs -o size=16m,mode=755,nosuid tmpfs {q(root)}
cd {q(root)}
mkdir -m 755 -p dev/shm tmp proc {" ".join(q(str(f.parent).lstrip("/")) for f in files)}
touch {" ".join(q(str(f).lstrip("/")) for f in files)}
{"".join(f"ln -s {q(target)} {q(name.lstrip('/'))}" + chr(10) for name, target in visible.links)}
cp -RP --preserve=mode --parents {" ".join(map(q, visible.copied))} .
cp {q(scratch / ETC)}/* etc/
ln -s /proc/self/fd dev/fd
cat > .mounts <<'END_OF_MOUNTS'
{table}
END_OF_MOUNTS
mount --all --fstab .mounts
rm .mounts
pivot_root . .
umount -l .
mount -o remount,bind,ro,nosuid /
cd /
"""


def _below(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path != Path(folder) and path.is_relative_to(folder) for folder in folders)


def _escaped(word: str) -> str:
    """As a word of a table of mounts."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in word)


def _quoted(word: str | Path) -> str:
    return "'" + str(word).replace("'", "'\\''") + "'"


def _bwrap(namespaces: tuple[str, ...], scratch: Path, visible: Visible | None) -> list[str]:
    assert visible is not None, "bubblewrap makes a mount namespace in any case"
    tmp_bytes, shm_bytes = _sizes()
    arguments = ["bwrap", *(f"--unshare-{name}" for name in namespaces if name != "mount")]
    arguments += ["--die-with-parent", "--info-fd", jail_process.INFO_FD]
    if "pid" in namespaces:
        arguments.append("--as-pid-1")
    early = [path for path in visible.read_only if not _below(path, ("/tmp", "/dev/shm"))]
    made: set[Path] = set(early)
    for path in early:
        arguments += _bwrap_folders(path, made) + _bwrap_bind(path, visible)
    arguments += _bwrap_folders(Path("/dev/null"), made) + _bwrap_folders(Path("/etc/hosts"), made)
    for name, target in visible.links:
        arguments += ["--symlink", target, name]
    for name in visible.copied:
        if os.path.islink(name):
            arguments += ["--symlink", os.readlink(name), name]
        else:
            arguments += ["--ro-bind", name, name]
    for name in ("hosts", "nsswitch.conf"):
        arguments += ["--ro-bind", str(scratch / ETC / name), f"/etc/{name}"]
    for node in visible.devices:
        arguments += ["--dev-bind", str(node), str(node)]
    arguments += ["--symlink", "/proc/self/fd", "/dev/fd", "--proc", "/proc"]
    arguments += ["--perms", "1777", "--size", str(shm_bytes), "--tmpfs", "/dev/shm"]
    arguments += ["--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", "/tmp"]
    for path in visible.read_only:
        if path not in early:
            arguments += _bwrap_folders(path, made) + _bwrap_bind(path, visible)
    arguments += [
        *_bwrap_folders(scratch, made),
        "--bind",
        str(scratch),
        str(scratch),
        "--remount-ro",
        "/",
        "--chdir",
        "/",
    ]
    return [*arguments, "sh", "-c", "echo ready; exec cat"]


def _bwrap_folders(path: Path, made: set[Path]) -> list[str]:
    """Makes the folders above a mount point: by itself bubblewrap makes them so that only root can pass."""
    above = [folder for folder in reversed(path.parents) if folder not in made and folder != Path("/")]
    made.update(above)
    return [word for folder in above for word in ("--perms", "0755", "--dir", str(folder))]


def _bwrap_bind(path: Path, visible: Visible) -> list[str]:
    arguments = ["--ro-bind", str(path), str(path)]
    for mask in visible.masked_below.get(path, ()):
        arguments += ["--perms", "0755", "--size", str(1 << 20), "--tmpfs", str(mask)]
    return arguments
