"""Where a rank is, read from outside."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.progress import Phase, Progress, ProgressBoard, Words


@pytest.fixture
def board(tmp_path):
    board = ProgressBoard(tmp_path / "progress", 3, create=True)
    yield board
    board.close()


def test_a_new_board_is_idle_and_private(board, tmp_path):
    assert [board.read(r) for r in range(3)] == [Words(Phase.idle, 0, 0, 0)] * 3
    assert (tmp_path / "progress").stat().st_mode & 0o777 == 0o600


def test_each_rank_writes_its_own_slot(board):
    first, last = Progress(board, 0), Progress(board, 2)
    first.enter(Phase.loading)
    last.enter(Phase.building)
    assert [board.read(r).phase for r in range(3)] == [Phase.loading, Phase.idle, Phase.building]


def test_calls_are_counted_as_begun_and_as_completed(board):
    progress = Progress(board, 1)
    seen = []
    for _ in range(2):
        assert progress.enter(Phase.calling) is Phase.idle
        seen.append(board.read(1))
        assert progress.enter(Phase.draining) is Phase.calling
        seen.append(board.read(1))
        progress.complete()
        seen.append(board.read(1))
    assert [(w.phase, w.calls, w.completed) for w in seen] == [
        (Phase.calling, 1, 0),
        (Phase.draining, 1, 0),
        (Phase.idle, 1, 1),
        (Phase.calling, 2, 1),
        (Phase.draining, 2, 1),
        (Phase.idle, 2, 2),
    ]


def test_every_change_and_every_touch_moves_the_clock(board):
    progress = Progress(board, 0)
    before = time.monotonic_ns()
    stamps = []
    for act in (lambda: progress.enter(Phase.loading), progress.touch, progress.touch, progress.complete):
        act()
        stamps.append(board.read(0).at_ns)
        time.sleep(0.001)
    assert before < stamps[0] < stamps[1] < stamps[2] < stamps[3] <= time.monotonic_ns()
    assert board.read(0).phase is Phase.idle


def test_a_file_that_a_rank_has_cut_off_is_read_as_idle(board, tmp_path):
    """A map of it would end this process."""
    Progress(board, 1).enter(Phase.calling)
    for size in (64 + 16, 0):
        os.truncate(tmp_path / "progress", size)
        assert board.read(1).completed == 0
    assert board.read(1) == Words(Phase.idle, 0, 0, 0)


def test_another_process_sees_and_writes_the_same_words(board, tmp_path):
    script = (
        "import sys; from pathlib import Path; from harness.progress import *\n"
        "Progress(ProgressBoard(Path(sys.argv[1]), 3), 1).enter(Phase.calling)"
    )
    root = Path(__file__).resolve().parents[2]
    before = time.monotonic_ns()
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "progress")], cwd=root, check=True)
    words = board.read(1)
    assert (words.phase, words.calls) == (Phase.calling, 1) and before < words.at_ns < time.monotonic_ns()


def test_a_forged_phase_reads_as_idle(board, tmp_path):
    with (tmp_path / "progress").open("r+b") as file:
        file.write(os.urandom(64))
        file.seek(64)
        file.write(b"\xff" * 64)
    assert board.read(0).phase in Phase
    assert board.read(1) == Words(Phase.idle, -1, -1, -1)


@pytest.mark.parametrize(("line", "seen"), [(-(10**9), 0), (-1, 0), (10**9, 10**9), (10**9 + 1, 0), (2**63 - 1, 0)])
def test_a_line_that_cannot_be_reads_as_none(board, line, seen):
    Progress(board, 1).launch(line)
    assert board.read(1).line == seen
