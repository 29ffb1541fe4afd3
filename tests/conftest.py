"""Marks: GPU tests are skipped where there are no GPUs; `scripts/gpu_check` runs them on a GPU machine."""

from pathlib import Path

import pytest

from harness import lease, machine
from harness.types import Backend, Candidate, Verdict
from tests import candidates

ROOT = Path(__file__).resolve().parent.parent


# Each runs half a minute or more on one worker: started last, one of them would keep the other worker waiting.
LONGEST = (
    "test_integrity_cpu.py",
    "test_end_to_end.py",
    "test_evaluate_cpu.py",
    "test_remote_cpu.py",
    "test_remote_run.py",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if machine.gpus():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU here"))


@pytest.fixture(scope="session", autouse=True)
def own_leases(tmp_path_factory):
    """Workers do not wait for each other's ranks: nothing here depends on how fast they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "FOLDER", tmp_path_factory.mktemp("leases") / "ringsmith-leases")
        yield


@pytest.fixture(scope="session")
def read_candidate():
    """`read_candidate(path, backend)` -> (Candidate, the verdicts that are right for it)."""

    def read(path: Path, backend: Backend) -> tuple[Candidate, tuple[Verdict, ...]]:
        example = candidates.read(path, backend)
        return example.candidate, example.expected

    return read


@pytest.fixture(scope="module")
def one_thread():
    """For many small tensors: threads that wait for each other on busy cores would take ten times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium, one for all tests of a worker (`tests.browser`)."""
    from tests import browser

    if reason := browser.missing():
        pytest.skip(reason)
    with browser.opened() as driver:
        yield driver
