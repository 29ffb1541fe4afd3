"""A keeper whose sandboxes have no processes, and databases of both kinds."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.pool import Pool
from service.asked import RunAsked
from service.jobs.keeper import Keeper
from service.jobs.store import Store, default_url
from tests.service import scripts
from tests.service.fake_server import Member
from tests.service.jobs.postgres import Cluster, lacking


@pytest.fixture(scope="session")
def postgres(tmp_path_factory) -> Iterator[Cluster]:
    if reason := lacking():
        pytest.skip(reason)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path: Path) -> str:
    """Of a new database."""
    if request.param == "sqlite":
        return default_url(tmp_path)
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    yield store
    store.close()


@pytest.fixture
def member() -> Member:
    return Member()


@pytest.fixture
def keepers(tmp_path: Path, member: Member) -> Iterator[Callable[..., Keeper]]:
    """`keepers()` opens one on the same root and database as the one before, which it closes."""
    opened: list[Keeper] = []

    def again(**more) -> Keeper:
        for keeper in opened:
            keeper.close(2.0)
            keeper.store.close()
        opened.clear()
        root = tmp_path / "runs"
        root.mkdir(exist_ok=True)
        settings = {"files": True, "make_pool": lambda *key: Pool("cpu", 2, [member]), **more}
        keeper = Keeper(root, Store(default_url(root)), **settings)
        keeper.open()
        opened.append(keeper)
        return keeper

    yield again
    for keeper in opened:
        keeper.close(2.0)
        keeper.store.close()


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., RunAsked]:
    """`asked(turns, think=0)`: a run of a model that says those turns."""

    def ask(turns, think: float = 0.0, **more) -> RunAsked:
        folder = tmp_path / f"scripts-{len(list(tmp_path.glob('scripts-*')))}"
        scripts.write(folder, "default", turns)
        return RunAsked(
            problem=1, model=f"scripted:{folder}?think={think}", platform="cpu", world_size=2, strategy="loop", **more
        )

    return ask


def wait(until: Callable[[], object], seconds: float = 20.0) -> None:
    """Fails if it never comes true."""
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)
