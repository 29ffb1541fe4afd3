"""What a candidate can see, reach and leave behind: nothing that is not its own. Real ranks, real jails."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import jail, jail_files, jail_process, nursery, processes
from harness.errors import HarnessError, SandboxError
from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Limits, Request, Verdict
from tests.processes import descendants

ROOT = Path(__file__).resolve().parent.parent.parent
LIMITS = Limits(load_s=10, first_call_s=5, call_s=5)
SECRET = "sk-never-to-be-seen-4711"
TRIED = jail.tried
HEAD = "import glob, json, os, pathlib, signal, socket, sys, time, torch, torch.distributed as dist\n"
RIGHT = HEAD + "def solution(x):\n    y = x.clone(); dist.all_reduce(y); return y\n"
LOOK = """
def text(path):
    try:
        return pathlib.Path(path).read_bytes().decode(errors="replace")
    except OSError as error:
        return type(error).__name__
def writable(path):
    path = pathlib.Path(path) / f"mine.{os.getpid()}"  # both ranks try
    try:
        path.write_text("x")
        path.unlink()
        return True
    except OSError:
        return False
def refused(act):
    try:
        act()
        return ""
    except OSError as error:
        return type(error).__name__
def solution(x):
    raise ValueError("<<" + json.dumps(look()) + ">>")
"""

if os.geteuid() != 0:
    pytest.skip("jails with another uid need root", allow_module_level=True)


def request(source: str) -> Request:
    return Request(
        candidate=Candidate(source=source, backend=Backend.cpp), problem=1, case="tiny", platform="cpu", world_size=2,
        dtype="float32", timing=False, trials=1, limits=LIMITS,
    )  # fmt: skip


def use(program: str, patch: pytest.MonkeyPatch) -> None:
    """Jails are made by this program, whichever there are."""
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    found = TRIED(program)
    patch.setattr(jail, "tried", lambda: found)


@pytest.fixture(scope="module", params=["unshare", "bwrap"])
def box(request):
    with pytest.MonkeyPatch.context() as patch:
        use(request.param, patch)
        patch.setenv("OPENAI_API_KEY", SECRET)
        with Sandbox("cpu", 2, LIMITS, isolation="strict") as made:
            yield made


def look(box: Sandbox, body: str) -> dict:
    """What a candidate's rank 0 finds; `body` is the body of a function that returns it."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    result = box.evaluate(request(HEAD + "def look():\n" + lines + LOOK))
    assert result.verdict is Verdict.runtime_error, result.summary
    return json.loads(result.ranks[0].message.partition("<<")[2].rpartition(">>")[0])


def test_every_layer_is_on_and_named(box):
    own_group = (jail.CONTROL_GROUP,) if box._processes.jail.groups else ()
    assert box.environment().isolation == (*jail.LAYERS, *own_group)
    assert box.evaluate(request(RIGHT)).passed


def test_it_is_nobody_without_any_power(box):
    found = look(
        box, 'return {line.split(":")[0]: line.split()[1:] for line in text("/proc/self/status").splitlines()}'
    )
    assert found["Uid"] == found["Gid"] == ["65534"] * 4 and not found["Groups"]
    assert {int(found[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert found["NoNewPrivs"] == ["1"]
    limits = look(
        box,
        "import resource\n"
        "names = ['RLIMIT_CORE', 'RLIMIT_NPROC', 'RLIMIT_AS']\n"
        "limits = {name: resource.getrlimit(getattr(resource, name)) for name in names}\n"
        "return limits | {'score': text('/proc/self/oom_score_adj')}",
    )
    assert limits["RLIMIT_CORE"] == [0, 0] and limits["score"] == "1000\n"
    assert 0 < limits["RLIMIT_NPROC"][1] <= 16384 and limits["RLIMIT_AS"] == [-1, -1]


def test_it_sees_no_files_but_those_it_needs(box):
    hidden = [ROOT / name for name in ("runs", "tests", "problems", "agent", ".git", "pyproject.toml")]
    hidden += [Path(path) for path in ("/etc/shadow", "/root/.bashrc", "/root/.ssh", "/home", "/var", "/boot")]
    hidden += [
        box._processes.scratch / "forkserver.log",
        box._processes._reference.scratch if box._processes._reference else Path("/x"),
    ]
    found = look(
        box,
        f"there = [path for path in {[str(path) for path in hidden]} if os.path.lexists(path)]\n"
        "devices = sorted(os.listdir('/dev'))\n"
        "shm = os.listdir('/dev/shm')\n"
        f"return {{'there': there, 'devices': devices, 'shm': shm, 'project': os.listdir({str(ROOT)!r}),\n"
        "        'tmp': os.listdir('/tmp'), 'home': os.environ['HOME']}",
    )
    assert found["there"] == [] and set(found["project"]) <= {"harness", ".venv"}
    assert found["devices"] == ["fd", "full", "null", "random", "shm", "tty", "urandom", "zero"]
    assert found["shm"] == [box._processes.scratch.name] and found["home"] == "/tmp"
    below = {path.relative_to("/tmp").parts[0] for path in (ROOT, Path(sys.prefix)) if path.is_relative_to("/tmp")}
    assert set(found["tmp"]) <= below  # where the project itself lies below /tmp, the way to it is there


def test_it_sees_no_other_process_and_no_network(box):
    found = look(
        box,
        "def connect(address):\n"
        "    with socket.socket() as sock:\n"
        "        sock.settimeout(2)\n"
        "        return refused(lambda: sock.connect(address))\n"
        "names = [text(path) for path in glob.glob('/proc/[0-9]*/comm')]\n"
        "return {'names': names, 'interfaces': [name for _, name in socket.if_nameindex()],\n"
        "        'outside': connect(('192.0.2.1', 80)), 'host': socket.gethostname(),\n"
        "        'kill': refused(lambda: os.kill(1, 9)), 'parent': os.getppid()}",
    )
    assert len(found["names"]) <= 4 and found["parent"] == 0  # pid 1, two ranks and, in bubblewrap, a shell
    assert found["interfaces"] == ["lo"] and found["outside"] and found["host"] == "jail"
    assert found["kill"] == "PermissionError"


def test_it_can_write_nowhere_but_where_it_may(box):
    found = look(
        box,
        "scratch = pathlib.Path(os.environ['RINGSMITH_CACHE']).parent\n"
        "closed = ['/', '/usr', '/etc', '/opt', '/dev', '/proc/sys/kernel', '/sys', str(scratch)]\n"
        "closed += [str(scratch.parent), str(scratch / 'exchange'), str(scratch / '.etc')]\n"
        f"closed += {[sys.prefix, sys.base_prefix, str(ROOT / 'harness')]}\n"
        "wrong = [path for path in closed if writable(path)]\n"
        "open_ = ['/tmp', '/dev/shm', str(scratch / 'cache'), str(scratch / 'out')]\n"
        "files = ['progress', 'candidate.py', 'exchange/inputs.0', 'log.1', 'stack.0']\n"
        "return {'wrong': wrong, 'closed': [path for path in open_ if not writable(path)],\n"
        "        'files': [name for name in files if not refused(lambda: open(scratch / name, 'r+'))],\n"
        "        'moved': [name for name in files if not refused(lambda: os.replace(scratch / name, scratch / 'x'))],\n"
        "        'outputs': refused(lambda: open(scratch / 'exchange' / 'outputs.0', 'r+'))}",
    )
    assert found == {"wrong": [], "closed": [], "files": [], "moved": [], "outputs": ""}


def test_no_key_is_to_be_found_anywhere(box):
    found = look(
        box,
        "paths = glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline') + glob.glob('/proc/*/task/*/environ')\n"
        "fds = [os.readlink(path) for path in glob.glob('/proc/self/fd/*') if os.path.lexists(path)]\n"
        "return {'read': [path for path in paths if 'PATH=' in text(path)][:3], 'environ': dict(os.environ),\n"
        "        'all': ''.join(sorted(set(map(text, paths)))), 'fds': fds}",  # once each: a message has a limit
    )
    assert found["read"] and SECRET not in json.dumps(found) and "OPENAI" not in json.dumps(found)
    assert not any(Path(link).is_dir() for link in found["fds"]), "a folder's descriptor would lead out of the jail"


def test_without_a_jail_it_is_said_so_and_there_are_no_keys_either(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with Sandbox("cpu", 2, LIMITS, isolation="none") as own:
        found = look(own, "return {'own': text('/proc/self/environ'), 'parent': text(f'/proc/{os.getppid()}/environ')}")
        assert own.environment().isolation == (*jail.ALWAYS, jail.NO_JAIL)
    assert "PATH=" in found["own"] and SECRET not in found["own"] + found["parent"]


HOSTILE = {
    "a daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(86400)
    os._exit(0)
raise ValueError("left one")""",
    "a fork bomb": """
for _ in range(100):
    if os.fork() == 0:
        time.sleep(86400)
raise ValueError("forked")""",
    "a massacre": "os.kill(-1, signal.SIGKILL)",
    "an endless printer": "while True:\n    os.write(1, b'x' * 65536)",
    "a full disk": """
with open("/dev/shm/mine", "wb") as file:
    while True:
        file.write(bytes(1 << 20))""",
    "a stopped pair": "os.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("trick", HOSTILE)
def test_whatever_it_does_ends_with_a_verdict_and_leaves_nothing(trick, monkeypatch):
    use("unshare", monkeypatch)
    monkeypatch.setattr(jail, "_SHM_SHARE", 128)  # 128th of the memory: full in a moment
    monkeypatch.setattr(nursery, "_LOG_BYTES", 1 << 20)
    body = "".join(f"    {line}\n" for line in HOSTILE[trick].strip().splitlines())
    with Sandbox("cpu", 2, LIMITS, isolation="strict") as own:
        own.environment()
        with _watched(own) as sizes:
            result = own.evaluate(request(HEAD + "def solution(x):\n" + body))
        assert result.verdict in (Verdict.runtime_error, Verdict.timeout, Verdict.deadlock), result.summary
        if trick == "an endless printer":
            assert any(b < a for log in sizes.values() for a, b in itertools.pairwise(log)), "never cut off"
        own._processes.ready()
        assert _untrusted(own) == sorted(own._processes._warm.pids), "nobody but the next candidate's ranks"
        folders = [path.name for path in own._processes.scratch.iterdir() if path.name.startswith("candidate-")]
        assert folders == [own._processes._warm.name]
        again = own.evaluate(request(RIGHT))
        assert again.passed, again.summary
        server = own._processes._started._process.pid
        assert len(descendants(server)) >= 4
        left = descendants(server)
    assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]


@contextlib.contextmanager
def _watched(box: Sandbox):
    """Sizes of each log of the candidates' ranks while the block runs."""
    sizes: dict[Path, list[int]] = {}
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.01):
            for log in box._processes.scratch.glob("candidate-*/log.0"):
                with contextlib.suppress(OSError):
                    sizes.setdefault(log, []).append(log.stat().st_size)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sizes
    finally:
        stop.set()
        thread.join()


def test_a_jail_that_is_ended_from_outside_is_nobodys_fault(monkeypatch):
    use("unshare", monkeypatch)
    with Sandbox("cpu", 2, LIMITS) as own:
        assert own.evaluate(request(RIGHT)).passed
        own._processes.ready()
        warm = own._processes._warm
        os.kill(_init(warm.pids[0]), signal.SIGKILL)
        _wait(lambda: _untrusted(own) == [])
        with pytest.raises(SandboxError, match="ended from outside"):
            warm.ask("probe", {"value": 1}, deadline_s=5)
        assert own.evaluate(request(RIGHT)).passed


def test_a_layer_that_fails_later_is_an_error_and_no_step_down(monkeypatch):
    use("unshare", monkeypatch)
    with Sandbox("cpu", 2, LIMITS) as own:
        assert own.evaluate(request(RIGHT), last=True).passed
        whole = jail.Jail.settings

        def broken(self, scratch, devices):
            settings = whole(self, scratch, devices)
            settings["holder"]["argv"] = ["sh", "-c", "echo no mounts today; exit 1"]
            return settings

        monkeypatch.setattr(jail.Jail, "settings", broken)
        with pytest.raises(HarnessError, match="no mounts today"):
            own.evaluate(request(RIGHT))
        monkeypatch.setattr(jail.Jail, "settings", whole)
        assert own.evaluate(request(RIGHT)).passed


def test_a_rank_that_cannot_be_confined_is_an_error(monkeypatch):
    use("unshare", monkeypatch)
    whole = jail.Jail.settings

    def odd(self, scratch, devices):
        settings = whole(self, scratch, devices)
        settings["drops"].append("nonsense")
        return settings

    monkeypatch.setattr(jail.Jail, "settings", odd)
    with Sandbox("cpu", 2, LIMITS) as own, pytest.raises(HarnessError, match=r"could not be confined: .*nonsense"):
        own.evaluate(request(RIGHT))


def test_the_project_is_covered_where_a_visible_folder_holds_it(tmp_path, monkeypatch):
    opt = tmp_path / "opt"
    for name in ("ringsmith/harness", "ringsmith/runs", "other"):
        (opt / name).mkdir(parents=True)
        (opt / name / "file").write_text("x")
    monkeypatch.setattr(jail_files, "_SYSTEM", (*jail_files._SYSTEM, str(opt)))
    monkeypatch.setattr(jail_files, "PROJECT", opt / "ringsmith")
    monkeypatch.setattr(jail_files, "__file__", str(opt / "ringsmith" / "harness" / "jail_files.py"))
    for program in ("unshare", "bwrap"):
        if shutil.which(program):
            scratch = tmp_path / program
            scratch.mkdir()
            jail.prepare(scratch)
            made = jail.Jail(program=program, namespaces=("mount", "pid", "net", "ipc", "uts"))
            holder = jail_process.Holder(made.settings(scratch, devices=False)["holder"])
            try:
                inside = Path(f"/proc/{holder.ready()}/root{opt}")
                assert sorted(path.name for path in inside.iterdir()) == ["other", "ringsmith"]
                assert [path.name for path in (inside / "ringsmith").iterdir()] == ["harness"]
                assert (inside / "ringsmith" / "harness" / "file").read_text() == "x"
                with pytest.raises(OSError, match="Read-only"):
                    (inside / "ringsmith" / "harness" / "file").write_text("y")
            finally:
                holder.kill()
                holder.process.wait()
                holder.close()


def test_a_jail_ends_with_the_process_that_holds_it(tmp_path):
    jail.prepare(tmp_path)
    made = jail.Jail(program="unshare", namespaces=("mount", "pid", "net", "ipc", "uts"))
    holder = jail_process.Holder(made.settings(tmp_path, devices=False)["holder"])
    init = holder.ready()
    _wait(lambda: Path(f"/proc/{init}/comm").read_text() == "cat\n")
    assert not holder.ended()
    holder.process.stdin.close()
    assert holder.process.wait(10) == 0 and holder.ended()
    holder.close()


NESTED = """
import ctypes, os, sys
from harness import jail_process
jail_process.join(int(sys.argv[1]), sys.argv[2].split())
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000), os.strerror(ctypes.get_errno()))
"""


def test_no_namespace_of_users_is_made_in_another(tmp_path):
    """As an ordinary user's jail has one, in which somebody could make himself powerful again."""
    names = ("user", "mount", "pid", "net", "ipc", "uts")
    jail.prepare(tmp_path)
    holder = jail_process.Holder(jail.Jail(program="unshare", namespaces=names).settings(tmp_path, False)["holder"])
    try:
        made = [sys.executable, "-c", NESTED, str(holder.ready()), " ".join(names)]
        done = subprocess.run(made, capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout == "-1 No space left on device\n"
    finally:
        holder.kill()
        holder.process.wait()
        holder.close()


def test_no_control_group_can_be_seen(box):
    found = look(box, "return {'groups': os.listdir('/sys/fs/cgroup') if os.path.isdir('/sys/fs/cgroup') else []}")
    assert found == {"groups": []}


def _untrusted(box: Sandbox) -> list[int]:
    """Living processes of a sandbox that are nobody's."""
    found = []
    for pid in descendants(box._processes._started._process.pid):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if "\nUid:\t65534\t" in status and "\nState:\tZ" not in status:
            found.append(pid)
    return sorted(found)


def _init(pid: int) -> int:
    """Pid 1, outside, of the jail that a process is in."""
    namespace = os.readlink(f"/proc/{pid}/ns/pid")
    inside = [
        other
        for other in descendants(os.getpid())
        if other != pid and os.readlink(f"/proc/{other}/ns/pid") == namespace
    ]
    return next(p for p in inside if Path(f"/proc/{p}/comm").read_text() in ("cat\n", "sh\n"))


def _wait(condition, wait_s: float = 10.0) -> None:
    deadline = time.monotonic() + wait_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def test_a_checkout_of_thunderkittens_is_visible_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("THUNDERKITTENS_ROOT", str(tmp_path))
    assert tmp_path in jail_files.find_visible(devices=False).read_only
    assert processes._passed_on()["THUNDERKITTENS_ROOT"] == str(tmp_path)
    for elsewhere in (Path.home(), "relative", tmp_path / "gone"):
        monkeypatch.setenv("THUNDERKITTENS_ROOT", str(elsewhere))
        assert Path(elsewhere) not in jail_files.find_visible(devices=False).read_only
