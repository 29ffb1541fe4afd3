"""What is kept of builds: for one candidate, whatever it made of its folder."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from harness import store
from harness.build import Builds
from harness.errors import HarnessError
from harness.processes import Processes
from harness.types import Backend, Candidate, Limits

SOURCE = """
from harness import kit
LIB = kit.build('extern "C" int twice(int n) { return 2 * n; }')
def solution(x):
    return LIB.twice(x)
"""


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSMITH_CACHE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def folder(tmp_path):
    """`folder(files)`: the cache of a new set of processes."""
    made: list[Path] = []

    def make(files: dict[str, str] | None = None) -> Path:
        path = tmp_path / f"set{len(made)}"
        path.mkdir()
        made.append(path)
        for name, text in (files or {}).items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        return path

    return make


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


LIBRARIES = {"kit/abc/kit.so": "library", "extension/def/name.so": "module", "triton/GHI/add.cubin": "code"}


def test_what_loading_needs_comes_back_to_the_same_candidate_only(folder):
    leftovers = {
        "kit/abc/kit.cu": "source",
        "kit/abc.lock": "",
        "kit/.abc.xyz/kit.so": "half",
        "extension/def/cuda.o": "object",
        "extension/def/headers_cuda/used.so": "deeper",
        "headers/jkl/headers.json": "{}",
        "triton/GHI/tmp.pid_1/add.cubin": "half",
        "other/abc/kit.so": "unknown kind",
        "kit.so": "not deep enough",
    }
    store.harvest(folder(LIBRARIES | leftovers), "one")
    same, other = folder(), folder()
    store.stock(same, "one")
    store.stock(other, "two")
    assert contents(same) == LIBRARIES and contents(other) == {}


def test_modes_are_ours(folder, root):
    source = folder(LIBRARIES)
    for path in source.rglob("*"):
        path.chmod(0o7777 if path.is_file() else 0o777)
    store.harvest(source, "one")
    target = folder()
    store.stock(target, "one")
    for place in (root / "candidates" / "one", target):
        modes = {str(p.relative_to(place)): p.stat().st_mode & 0o7777 for p in place.rglob("*")}
        assert modes.pop("triton/GHI/add.cubin") == 0o644
        assert set(modes.values()) == {0o755}


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_the_set_owns_its_copy(folder):
    store.harvest(folder(LIBRARIES), "one")
    target = folder()
    os.chown(target, 65534, 65534)
    store.stock(target, "one")
    assert {p.stat().st_uid for p in target.rglob("*")} == {65534}


def test_links_and_special_files_are_passed_over(folder, root, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "a.so").write_text("secret")
    source = folder({"kit/good/kit.so": "good"})
    (source / "kit" / "link").mkdir()
    (source / "kit" / "link" / "a.so").symlink_to(secret / "a.so")
    (source / "kit" / "hard").mkdir()
    (source / "kit" / "hard" / "a.so").hardlink_to(secret / "a.so")
    (source / "kit" / "folder").symlink_to(secret)
    (source / "extension").symlink_to(source / "kit")
    (source / "triton").mkdir()
    (source / "triton" / "special").mkdir()
    os.mkfifo(source / "triton" / "special" / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "triton" / "special" / "socket"))
        store.harvest(source, "one")
    assert contents(root) == {"candidates/one/kit/good/kit.so": "good"}
    (tmp_path / "linked").symlink_to(source)
    store.harvest(tmp_path / "linked", "two")
    assert not (root / "candidates" / "two").exists()


def test_what_is_kept_is_never_replaced(folder, root):
    store.harvest(folder({"kit/abc/kit.so": "first"}), "one")
    store.harvest(folder({"kit/abc/kit.so": "second", "kit/def/kit.so": "new"}), "one")
    assert contents(root / "candidates" / "one") == {"kit/abc/kit.so": "first", "kit/def/kit.so": "new"}


def test_a_candidate_is_bounded(folder, root, monkeypatch):
    monkeypatch.setattr(store, "_MAX_BYTES", 100)
    monkeypatch.setattr(store, "_MAX_FILES", 3)
    store.harvest(folder({"kit/a/kit.so": "x" * 101, "kit/b/kit.so": "x" * 60, "kit/c/kit.so": "x" * 60}), "one")
    assert len(contents(root)) == 1
    store.harvest(folder({f"kit/{name}/kit.so": "x" for name in "defghi"}), "one")
    assert len(contents(root)) == 3
    big = folder({"kit/a/kit.so": ""})
    os.truncate(big / "kit/a/kit.so", 1 << 40)
    store.harvest(big, "two")
    assert not (root / "candidates" / "two").exists()


def test_a_folder_of_a_million_names_is_given_up(folder, monkeypatch):
    monkeypatch.setattr(store, "_MAX_FILES", 10)
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    store.harvest(folder({f"triton/{entry}/{name}": "" for entry in range(20) for name in range(20)}), "one")
    assert len(opened) < 100


def test_those_longest_not_used_go_first(folder, root, monkeypatch):
    monkeypatch.setattr(store, "_MAX_TOTAL_BYTES", 25)
    for age, name in enumerate(("new", "middle", "old")):
        store.harvest(folder({"kit/a/kit.so": "x" * 10}), name)
        os.utime(root / "candidates" / name, (1000 - age, 1000 - age))
        assert age < 2 or not (root / "candidates" / "middle").exists()
    store.stock(folder(), "old")  # is used again
    store.harvest(folder({"kit/a/kit.so": "x" * 10}), "newest")
    assert {path.name for path in (root / "candidates").iterdir()} == {"old", "newest"}


def test_lists_of_files_follow_the_folder(folder):
    first = folder({"triton/abc/add.cubin": "code"})
    (first / "triton/abc/__grp__add.json").write_text(f'{{"child_paths": {{"add.cubin": "{first}/triton/abc/a"}}}}')
    store.harvest(first, "one")
    second = folder()
    store.stock(second, "one")
    text = (second / "triton/abc/__grp__add.json").read_text()
    assert f'"{second}/triton/abc/a"' in text and str(first) not in text


def test_long_lists_of_files_are_not_kept(folder, root, monkeypatch):
    """Each mark in them becomes the folder's name."""
    monkeypatch.setattr(store, "_MAX_GROUP_BYTES", 100)
    files = {"triton/abc/__grp__add.json": "x" * 100, "triton/abc/__grp__x": "x" * 101, "triton/abc/add": "x" * 101}
    store.harvest(folder(files), "one")
    kept = contents(root / "candidates" / "one")
    assert set(kept) == {"triton/abc/__grp__add.json", "triton/abc/add"}


def test_nothing_to_do_is_no_error(folder, tmp_path, root):
    store.harvest(tmp_path / "missing", "one")
    store.stock(folder(), "one")
    store.harvest(folder(LIBRARIES), "one")
    store.stock(tmp_path / "missing", "one")
    assert not (tmp_path / "missing").exists()


def test_a_store_that_cannot_be_written_is_our_fault(folder, root):
    root.mkdir()
    (root / "candidates").write_text("in the way")
    with pytest.raises(HarnessError, match="build cache"):
        store.harvest(folder(LIBRARIES), "one")


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is missing")
def test_a_second_session_finds_the_library(root, monkeypatch):
    left, harvest = [], store.harvest
    monkeypatch.setattr(store, "harvest", lambda f, h: left.append(contents_of(f)) or harvest(f, h))
    candidate = Candidate(source=SOURCE, backend=Backend.cpp)
    for _ in range(2):
        processes = Processes("cpu", 1, Limits())
        try:
            report = Builds(processes).build(candidate)
        finally:
            processes.close()
        assert report.verdict is None and len(report.built) == 1, report
    first, second = left
    assert {"kit.cpp", "kit.so"} <= first and second == {"kit.so"}
    assert {p.name for p in root.iterdir()} == {"candidates"}


def contents_of(folder: Path) -> set[str]:
    return {p.name for p in folder.rglob("*") if p.is_file()}
