"""Servers: in this process where only answers count, in one of their own where the process does."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.http.access import Tokens
from service.http.app import make_app
from service.http.guard import Rules
from tests.service import scripts
from tests.service.jobs.conftest import asked, keepers, member  # noqa: F401
from tests.service.server import Server


@pytest.fixture
def client(keepers) -> Iterator[Callable[..., TestClient]]:  # noqa: F811
    """`client(Rules(...), keeper settings)`; `client.keeper` and `client.tokens` come with it."""
    opened: list[TestClient] = []

    def make(rules: Rules | None = None, given: str = "", **settings) -> TestClient:
        keeper = keepers(**settings)
        tokens = Tokens(keeper.store, given)
        test = TestClient(make_app(keeper, tokens, rules), base_url="http://localhost", raise_server_exceptions=False)
        test.__enter__()
        test.keeper, test.tokens = keeper, tokens
        opened.append(test)
        return test

    yield make
    for test in opened:
        test.__exit__(None, None, None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """`server(flags...)` starts one."""
    started: list[Server] = []

    def start(*flags: str, **more) -> Server:
        started.append(Server(tmp_path / "runs", *flags, **{"module": "tests.service.fake_server", **more}))
        return started[-1].start()

    yield start
    for one in started:
        if one.process is not None:
            one.stop()


@pytest.fixture
def thinks(tmp_path: Path) -> Callable[..., dict]:
    """`thinks(turns, seconds)`: the body that begins a run of a scripted model."""

    def body(turns, think: float = 0.0) -> dict:
        folder = tmp_path / f"model-{len(list(tmp_path.glob('model-*')))}"
        scripts.write(folder, "default", turns)
        model = f"scripted:{folder}?think={think}"
        return {"problem": 1, "model": model, "platform": "cpu", "world_size": 2, "strategy": "loop", "steps": 500}

    return body
