"""Builds shared between processes: once, all or nothing, and never blocked by a dead builder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import cache

ROOT = Path(__file__).resolve().parents[2]

# Builds `one` and says so in a log; argv: what `make` does before it writes its file.
BUILDER = """
import os, sys, time
from pathlib import Path
from harness import cache
log = Path(os.environ["BUILD_LOG"])
def make(folder):
    with log.open("a") as file:
        file.write(f"make {os.getpid()}\\n")
    (folder / "half").write_text("half")
    time.sleep(float(sys.argv[1]))
    (folder / "whole").write_text("whole")
folder = cache.build("kind", "one", make)
assert (folder / "whole").read_text() == "whole"
print(folder)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILD_LOG", str(tmp_path / "log"))
    return tmp_path / "cache"


def start_builder(seconds: float) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(seconds)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def makes() -> list[str]:
    log = Path(os.environ["BUILD_LOG"])
    return log.read_text().splitlines() if log.exists() else []


def wait_for_makes(count: int) -> None:
    deadline = time.monotonic() + 20
    while len(makes()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_concurrent_builders_make_once(folder):
    builders = [start_builder(0.2) for _ in range(4)]
    results = [builder.communicate(timeout=30) for builder in builders]
    assert [builder.returncode for builder in builders] == [0] * 4, results
    assert {out.decode().strip() for out, _ in results} == {str(folder / "kind" / "one")}
    assert len(makes()) == 1


def test_a_killed_builder_does_not_block_the_next_and_leaves_nothing(folder):
    builder = start_builder(60)
    wait_for_makes(1)
    assert not (folder / "kind" / "one").exists()
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    started = time.monotonic()
    built = cache.build("kind", "one", lambda f: (f / "whole").write_text("again") and None)
    assert time.monotonic() - started < 1
    assert [p.name for p in built.iterdir()] == ["whole"]
    assert sorted(p.name for p in (folder / "kind").iterdir()) == ["one", "one.lock"]


def test_a_builder_that_waits_takes_over_from_a_killed_one():
    first = start_builder(60)
    wait_for_makes(1)
    second = start_builder(0)
    time.sleep(0.2)
    assert len(makes()) == 1, "the second waits"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    _, errors = second.communicate(timeout=20)
    assert second.returncode == 0, errors
    assert len(makes()) == 2


def test_a_failing_make_publishes_nothing(folder):
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("no compiler")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no compiler"):
            cache.build("kind", "one", fail)
    assert [p.name for p in (folder / "kind").iterdir()] == ["one.lock"]
    built = cache.build("kind", "one", lambda f: (f / "whole").write_text("w") and None)
    assert [p.name for p in built.iterdir()] == ["whole"]


def test_what_is_there_is_not_made_again():
    made = []
    for _ in range(3):
        cache.build("kind", "one", made.append)
    assert len(made) == 1
    cache.build("other", "one", made.append)
    cache.build("kind", "two", made.append)
    assert len(made) == 3


def test_keys_tell_contents_apart():
    keys = [cache.key(*parts) for parts in (("a", "b"), ("ab",), ("a", ["b"]), (b"a", "b"), ("a", "b", ""), ())]
    assert len(set(keys)) == len(keys)
    assert cache.key("a", "b") == keys[0] and all(key.isalnum() and len(key) == 24 for key in keys)


def test_a_compiler_is_known_by_its_file(tmp_path):
    tool, link = tmp_path / "g++-1", tmp_path / "g++"
    tool.write_text("one")
    link.symlink_to(tool)
    first = cache.tool_identity(str(link))
    assert cache.tool_identity(str(link)) == first
    tool.write_text("other")
    assert cache.tool_identity(str(link)) != first


def test_the_root_follows_the_environment(monkeypatch, tmp_path):
    assert cache.root() == tmp_path / "cache"
    monkeypatch.delenv("RINGSMITH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache.root() == Path("/elsewhere/ringsmith")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert cache.root() == Path("/somebody/.cache/ringsmith")
