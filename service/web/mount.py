"""Puts the pages on the server's FastAPI app."""

from __future__ import annotations

from pathlib import Path

import nicegui
from fastapi import FastAPI
from nicegui import ui
from starlette.routing import Match, Mount
from starlette.types import Scope

from harness.errors import UsageError
from service.http.access import Tokens
from service.http.guard import COOKIE
from service.jobs.keeper import Keeper
from service.web import door, files, machine_page, problems_page, run_page, runs_page, sweeps_page
from service.web.live import Lives
from service.web.site import Site

_mounted = False


def mount(app: FastAPI, keeper: Keeper, tokens: Tokens) -> None:
    """Call once all other routes and the guard are there: what nobody else answers is a page's, and the door comes
    before the guard. Raises UsageError the second time: NiceGUI has one app in a process."""
    global _mounted
    if _mounted:
        raise UsageError("the web pages are mounted once in a process")
    _mounted = True
    site = Site(keeper, tokens, COOKIE, Lives())
    app.include_router(files.router(site))
    app.include_router(door.router(tokens, COOKIE))
    app.add_middleware(door.Door)
    _pages(site)
    nicegui.app.add_static_files("/web", str(Path(__file__).parent / "static"))
    ui.run_with(app, title="Ringsmith", dark=None, tailwind=False, show_welcome_message=False, reconnect_timeout=10.0)
    app.router.routes[-1] = _Pages("/", nicegui.app)


class _Pages(Mount):
    """Whatever the API does not know it says so itself, in its own form."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.NONE, {}) if scope.get("path", "").startswith("/api/") else super().matches(scope)


def _pages(site: Site) -> None:
    @ui.page("/")
    def runs() -> None:
        runs_page.page(site)

    @ui.page("/runs/{run_id}")
    async def one_run(run_id: str) -> None:
        await run_page.page(site, run_id)

    @ui.page("/sweeps")
    def sweeps() -> None:
        sweeps_page.page(site)

    @ui.page("/sweeps/{name}")
    async def one_sweep(name: str) -> None:
        await sweeps_page.one_page(site, name)

    @ui.page("/problems")
    def problems() -> None:
        problems_page.page(site)

    @ui.page("/problems/{number}")
    async def one_problem(number: str) -> None:
        await problems_page.one_page(site, number)

    @ui.page("/machine")
    async def machine() -> None:
        await machine_page.page(site)
