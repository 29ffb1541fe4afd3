"""One server with pages for all tests of this folder, which asks for tokens, and a browser that has one."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from runs.record import DEFAULT_ROOT
from tests import browser as browsing
from tests.runs.long_record import write_long
from tests.runs.record_sets import write_set
from tests.service.server import Server
from tests.service.web.looking import Looking
from tests.service.web.records import write_hostile, write_sweep, write_untimed

pytest.importorskip("nicegui")


@pytest.fixture(scope="session")
def admin() -> str:
    return secrets.token_urlsafe(24)


@pytest.fixture(scope="session")
def server(tmp_path_factory, admin, browser):
    """`browser` first: without one, nothing is started."""
    root: Path = tmp_path_factory.mktemp("web") / "runs"
    write_set(root, problems=(1, 2, 13), samples=10, steps=2)  # with faults 62 runs: more than a page
    write_long(root, "long", steps=120)
    write_hostile(root)
    write_untimed(root)
    write_sweep(root)
    (root / "p01-cuda").symlink_to(DEFAULT_ROOT.parent / "examples" / "p01-cuda")
    token_file = root.parent / "token"
    token_file.write_text(admin)
    served = Server(root, "--require-token", "--token-file", str(token_file), pages=True)
    try:
        yield served.start()
    finally:
        served.stop()


@pytest.fixture
def look(browser, server, admin):
    """A browser that has come in as admin. Whatever a test does there, no other host is asked for anything, and the
    browser has nothing to complain of."""
    looking = Looking(browser, server.url)
    looking.begin(admin)
    yield looking
    assert browsing.hosts(browser) <= {"127.0.0.1"}
    assert browsing.complaints(browser) == []
