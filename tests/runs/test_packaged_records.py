"""The recorded runs that ship with Ringsmith are whole: every candidate is there, unchanged, and nothing private is."""

import re

import pytest

from harness.types import Candidate
from runs.record import DEFAULT_ROOT, Record

EXAMPLES = sorted(path for path in (DEFAULT_ROOT.parent / "examples").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda p: p.name)
def test_a_packaged_record_is_whole(folder):
    record = Record.open(folder)
    run = record.run()
    assert run.status == "finished" and run.official.passed and run.target_met
    written = {attempt.candidate for attempt in run.attempts}
    for digest in written:
        source = (folder / "candidates" / f"{digest}.py").read_text()
        assert Candidate(source=source, backend=run.config.backend).hash == digest
    assert run.best.candidate in written
    verdicts = [attempt.verdict for attempt in run.attempts if attempt.verdict]
    assert "wrong_values" in verdicts and "passed" in verdicts


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda p: p.name)
def test_a_packaged_record_names_no_path_of_the_machine_it_was_made_on(folder):
    for file in folder.rglob("*.*"):
        assert not re.search(r'["( ]/(root|home|tmp|work|Users)/', file.read_text())
