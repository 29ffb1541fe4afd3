import time
from pathlib import Path

import pytest

from agent.models import make
from agent.models.replay import REPLAY_END
from harness.errors import UsageError

TOOLS = [{"name": "submit"}]
"""Only the judge is asked without any."""


def script(folder: Path, name: str) -> None:
    usage = '"usage": {"input_tokens": 7, "output_tokens": 3}, "cost_usd": 0.5'
    (folder / f"{name}.jsonl").write_text(f'{{"text": "{name}", {usage}}}\n')


def test_the_nearest_file_speaks(tmp_path: Path) -> None:
    for name in ("p03.2", "p03", "default"):
        script(tmp_path, name)
    name = f"scripted:{tmp_path}"

    def says(problem: int, sample: int) -> str:
        return make(name, problem=problem, sample=sample).reply([], TOOLS).text

    assert [says(3, 1), says(3, 2), says(4, 1)] == ["p03", "p03.2", "default"]
    model = make(name, problem=3, sample=1)
    turn = model.reply([], TOOLS)
    assert (model.name, turn.usage.input_tokens, turn.cost_usd, model.priced()) == (name, 7, 0.5, True)
    assert model.reply([], TOOLS).stop == REPLAY_END


def test_thinking_takes_time_and_is_part_of_the_name(tmp_path: Path) -> None:
    script(tmp_path, "default")
    model = make(f"scripted:{tmp_path}?think=0.05")
    began = time.monotonic()
    assert model.reply([], TOOLS).text == "default" and time.monotonic() - began >= 0.05
    assert model.name == f"scripted:{tmp_path}?think=0.05"


@pytest.mark.parametrize("think", ["", "soon", "-1", "inf", "nan"])
def test_what_is_no_time_is_refused(tmp_path: Path, think: str) -> None:
    script(tmp_path, "default")
    with pytest.raises(UsageError, match="not a number of seconds"):
        make(f"scripted:{tmp_path}?think={think}")


def test_a_problem_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has none of p05\.2\.jsonl, p05\.jsonl, default\.jsonl"):
        make(f"scripted:{tmp_path}", problem=5, sample=2)
