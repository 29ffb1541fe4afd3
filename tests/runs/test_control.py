"""The inbox of a run: many may leave requests at once, and none is seen half written."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.errors import HarnessError
from runs import control
from runs.control import Request

ROOT = Path(__file__).resolve().parents[2]
SEND = """
import sys
from pathlib import Path
from runs import control
for n in range(40):
    control.send(Path(sys.argv[1]), control.Request(action="hint", text=f"{sys.argv[2]} {n} " + "x" * 9000))
"""


def test_requests_of_many_processes_are_whole_and_each_senders_are_in_order(tmp_path: Path) -> None:
    senders = [subprocess.Popen([sys.executable, "-c", SEND, tmp_path, str(n)], cwd=ROOT) for n in range(4)]
    taken = []
    while any([sender.poll() is None for sender in senders]) or control.pending(tmp_path):
        for asked in control.pending(tmp_path):
            assert asked.request is not None, asked.fault
            taken.append(asked)
            control.remove(tmp_path, asked.id)
    assert [sender.returncode for sender in senders] == [0] * 4
    assert len({asked.id for asked in taken}) == len(taken) == 160
    for n in range(4):
        said = [asked.request.text.split() for asked in taken if asked.request.text.startswith(f"{n} ")]
        assert [int(words[1]) for words in said] == list(range(40))
    assert list((tmp_path / "control").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"action": "hint"}, "a hint without a text"),
        ({"action": "candidate", "text": "\n"}, "a candidate without a text"),
        ({"action": "pause", "text": "now"}, "a pause with a text"),
        ({"action": "hint", "text": "x" * (control.MAX_HINT + 1)}, "at most"),
        ({"action": "stop"}, "action: "),
        ({"action": "pause", "when": "now"}, "when: "),
    ],
)
def test_what_is_no_request(fields: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Request(**fields)
    assert said in control.why(caught.value)


def test_a_clock_that_is_set_back_does_not_change_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5_000, 4_000, 4_500, 9_000])
    monkeypatch.setattr(control.time, "time_ns", lambda: next(times))
    sent = [control.send(tmp_path, Request(action="hint", text=text)) for text in "abcd"]
    assert [asked.id for asked in control.pending(tmp_path)] == sent


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "control").write_text("")
    with pytest.raises(HarnessError, match="cannot write"):
        control.send(tmp_path, Request(action="pause"))
    assert control.pending(tmp_path) == [] and control.pending(tmp_path / "none") == []
