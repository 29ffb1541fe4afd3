"""What every page has: who looks at it, the frame around it, and how errors are told."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from harness.errors import RingsmithError
from harness.wording import one_line
from problems.spec import ProblemError
from service.http.access import Grant, Scope, Tokens
from service.jobs.keeper import Keeper
from service.web import LOGIN
from service.web.live import Lives

WATCH_S = 2.0
LINKS = {"Runs": "/", "Sweeps": "/sweeps", "Problems": "/problems", "Machine": "/machine"}
KEYS = "j and k go down and up a list, Enter opens; / goes to the filter; Tab reaches everything"


@dataclass(frozen=True)
class Site:
    keeper: Keeper
    tokens: Tokens
    cookie: str
    lives: Lives


class Visitor:
    """Who looks at the page that is being made. A token that is revoked later ends what its pages may do."""

    def __init__(self, site: Site) -> None:
        request = ui.context.client.request
        self._tokens, self._token = site.tokens, request.cookies.get(site.cookie, "")
        self._here: Grant | None = request.scope.get("state", {}).get("grant")

    async def may(self, wanted: Scope) -> bool:
        grant = await to_thread(self._tokens.grant, self._token) if self._token else self._here
        return grant is not None and grant.allows(wanted)

    @property
    def name(self) -> str:
        return self._here.name if self._here else ""

    def watch(self) -> None:
        """End the page once its token is taken no more."""
        client = ui.context.client

        async def check() -> None:
            if not await self.may("read"):
                ui.navigate.to(LOGIN)
                await asyncio.sleep(WATCH_S)  # a browser that does not go is told nothing more all the same
                client.delete()

        ui.timer(WATCH_S, check)


@contextmanager
def frame(site: Site, title: str, at: str = "") -> Iterator[Visitor]:
    """The page around its content; `at` is the link that leads here."""
    visitor = Visitor(site)
    visitor.watch()
    ui.page_title(f"{title} - Ringsmith")
    ui.add_head_html('<link rel="stylesheet" href="/web/style.css"><script src="/web/keys.js" defer></script>')
    with ui.header().classes("bar"), ui.element("nav").props('aria-label="Pages"'):
        for name, target in LINKS.items():
            link = ui.link(name, target)
            if target == at:
                link.props('aria-current="page"')
        ui.label(KEYS).classes("keys")
    with ui.element("main").classes("page"):
        yield visitor


def heading(text: str, level: int = 2) -> None:
    """Text as a heading."""
    with ui.element(f"h{level}"):
        ui.label(text)


def pre(text: str) -> ui.label:
    """Text of several lines as it is."""
    return ui.label(text).classes("pre")


def badge(verdict: str | None) -> ui.label:
    return ui.label(verdict or "not evaluated").classes(f"verdict {tone(verdict)}")


def tone(verdict: str | None) -> str:
    return "right" if verdict == "passed" else "wrong" if verdict else "none"


def tell(error: Exception) -> None:
    """What could not be done, in a line."""
    ui.notify(one_line(str(error), 300), type="negative", close_button="Close")


async def tried(act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What `act` answers in a thread; None if it says why not, which is told."""
    try:
        return await to_thread(act, *arguments, **named)
    except (RingsmithError, ProblemError) as error:
        tell(error)
        return None


def sentence(label: str, value: object) -> None:
    """A named value."""
    with ui.element("div").classes("fact"):
        ui.label(label).classes("faint")
        ui.label(str(value))
