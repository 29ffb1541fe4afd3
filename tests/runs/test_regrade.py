from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.types import Verdict
from runs.record import Record
from runs.regrade import Regrade, compare, regrades, save
from tests.runs.factories import evaluation, measurement

SAME = ("ringsmith", "ringsmith")


def test_noise_is_no_change_and_more_is() -> None:
    before = evaluation(measured=measurement(1.0, 0.9))  # 1.1 [1.0, 1.2], device 1.0 [0.9, 1.1]
    assert compare(before, evaluation(measured=measurement(1.05, 0.95)), SAME) == ()
    assert compare(before, evaluation(measured=measurement(1.2, 0.9)), SAME) == (
        "eager speed-up: 1.10x [1.00, 1.20] -> 1.30x",
    )
    assert compare(before, evaluation(measured=measurement(1.0)), SAME) == ()


def test_settings_come_before_results() -> None:
    before = evaluation(measured=measurement(1.0))
    after = evaluation(verdict=Verdict.race).model_copy(update={"world_size": 4, "check": "pkb"})
    assert compare(before, after, ("ringsmith", "pkb")) == (
        "protocol: ringsmith -> pkb",
        "world_size: 2 -> 4",
        "check: oracle -> pkb",
        "verdict: passed -> race",
    )
    assert compare(None, after, SAME) == ("not evaluated officially -> race",)


def test_results_are_kept_beside_the_record(tmp_path: Path) -> None:
    record = Record.create(tmp_path, "r")
    kept = [
        Regrade(at=at, run_id="r", protocol="ringsmith", before=None, after=evaluation(), changes=("a",))
        for at in (1.0, 2.0)
    ]
    for regrade in reversed(kept):
        save(record, regrade)
    assert regrades(record) == kept
    (record.path / "regrades" / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="not a regrade"):
        regrades(record)
