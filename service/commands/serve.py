"""`ringsmith serve`: the HTTP API, and the tokens that it takes."""

from __future__ import annotations

import gc
import json as json_module
import logging
import os
import resource
import socket
import sys
from contextlib import ExitStack, closing, suppress
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import UsageError
from runs.record import DEFAULT_ROOT
from runs.wording import when
from service.options import Json, SandboxAddress, SandboxCa, SandboxToken, finite, place
from service.text import columns

if TYPE_CHECKING:
    from service.http.access import Tokens
    from service.http.guard import Rules
    from service.jobs.keeper import Keeper
    from service.jobs.store import Store

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
token = typer.Typer(help="Make, list and revoke tokens.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(token, name="token")

_NEEDED = ("fastapi", "nicegui", "prometheus_client", "sqlalchemy", "sse_starlette", "uvicorn")
_CLOSE_S = 5
"""How long clients may take for an answer once the server is to end."""
_MOST_FILES = 16_384
_SWITCH_S = 0.001
"""Many runs' threads share the interpreter with the one that answers, which must not wait for 5 ms of each."""

Root = Annotated[
    Path, typer.Option("--runs-dir", "--root", help="Folder of run records.", show_default="runs/data of this checkout")
]
Database = Annotated[
    str | None,
    typer.Option(
        envvar="RINGSMITH_DATABASE",
        show_envvar=True,
        metavar="URL",
        help="sqlite:///FILE or postgresql://USER@HOST/NAME. Default: service.sqlite in the runs' folder.",
    ),
]


class ScopeName(StrEnum):
    read = "read"
    run = "run"
    admin = "admin"


@app.callback()
def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen at; any but this machine's own needs tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free; it is printed.")] = 8765,
    root: Root = DEFAULT_ROOT,
    database: Database = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds a token of scope admin, besides those of the database.")
    ] = None,
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Also of clients at this machine: other users can reach the port.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name of this server (a proxy's); may be repeated.")
    ] = None,
    allow_files: Annotated[
        bool,
        typer.Option("--allow-files", help="Let clients name models and suites that are files of this machine."),
    ] = False,
    sandbox: SandboxAddress = "",
    sandbox_ca: SandboxCa = None,
    sandbox_token_file: SandboxToken = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Runs that go on at once; others wait.")] = 16,
    rate: Annotated[
        float, typer.Option(min=0.0, callback=finite, help="Requests a second of one client; 0: no limit.")
    ] = 100.0,
    access_log: Annotated[bool, typer.Option("--access-log", help="A line for each request, on stderr.")] = False,
    pages: Annotated[bool, typer.Option(help="Web pages besides the API.")] = True,
) -> None:
    """Serve the web pages (docs/web.md) and the HTTP API (docs/http.md). Runs that an earlier server did not finish go
    on. Ctrl-C and SIGTERM end it: its runs end as interrupted, and go on at the next start."""
    if context.invoked_subcommand is not None:
        return
    _require_extra()
    where = place(sandbox, sandbox_ca, sandbox_token_file)
    from harness.remote.credentials import LOOPBACK, is_loopback
    from service.http.access import Tokens, read_token_file
    from service.http.guard import Rules
    from service.jobs.keeper import Keeper
    from service.web import PUBLIC

    local = is_loopback(host)
    names = {name.lower() for name in allow_host or ()}
    rules = Rules(
        hosts=frozenset({*LOOPBACK, host.lower(), *names}) if local or names else frozenset(),
        needs_token=require_token or not local,
        rate=rate,
        burst=5 * rate,
        public=(*Rules.public, *(PUBLIC if pages else ())),
    )
    _set_up_logging()
    sys.setswitchinterval(_SWITCH_S)
    _raise_file_limit()
    with closing(_store(root, database)) as store, closing(_listen(host, port)) as listening:
        tokens = Tokens(store, read_token_file(token_file) if token_file else "")
        if rules.needs_token and not tokens.any():
            raise UsageError("that needs a token: `ringsmith serve token create NAME --scope run`, or --token-file")
        keeper = Keeper(root, store, concurrency=concurrency, files=allow_files, place=where)
        keeper.open()
        try:
            _serve(keeper, tokens, rules, listening, access_log, pages)
        finally:
            typer.echo("ending: runs under way are interrupted, and go on at the next start", err=True)
            keeper.close()


def _serve(
    keeper: Keeper, tokens: Tokens, rules: Rules, listening: socket.socket, access_log: bool, pages: bool
) -> None:
    import uvicorn

    from service.http.app import make_app

    app = make_app(keeper, tokens, rules)
    if pages:
        from service.web.mount import mount

        mount(app, keeper, tokens)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=access_log,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_S,
    )
    address, port = listening.getsockname()[:2]
    typer.echo(f"serving on http://{f'[{address}]' if ':' in address else address}:{port}")
    # What was imported stays: to look through it again for garbage stops every thread for up to half a second.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    with suppress(KeyboardInterrupt):  # how it was told to end
        uvicorn.Server(config).run(sockets=[listening])


@token.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose it is: it is in jobs and the list, never in a record.")],
    scope: Annotated[
        ScopeName,
        typer.Option(help="read: look; run: also begin and enter runs; admin: also make and revoke tokens."),
    ] = ScopeName.read,
    root: Root = DEFAULT_ROOT,
    database: Database = None,
) -> None:
    """Make a token and print it: this once, since only its hash is kept."""
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii() or len(name) > 100:
        raise UsageError(f"{name!r} is no name for a token: letters, digits, - _ and .")
    with closing(_store(root, database)) as store:
        from service.http.access import Tokens

        typer.echo(Tokens(store).create(name, scope.value))


@token.command("list")
def list_tokens(root: Root = DEFAULT_ROOT, database: Database = None, json: Json = False) -> None:
    """List tokens, without their secrets."""
    with closing(_store(root, database)) as store:
        from service.http.access import Tokens

        found = Tokens(store).list()
    if json:
        for info in found:
            typer.echo(json_module.dumps(info.model_dump()))
        return
    rows = [(t.name, t.scope, when(t.created_at), when(t.revoked_at) if t.revoked_at else "") for t in found]
    typer.echo(columns([("NAME", "SCOPE", "CREATED", "REVOKED"), *rows]))


@token.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Of the token.")], root: Root = DEFAULT_ROOT, database: Database = None
) -> None:
    """Take a token no more; a server that is running notices within seconds."""
    with closing(_store(root, database)) as store:
        from service.http.access import Tokens

        typer.echo(f"revoked {Tokens(store).revoke(name).name}")


def _store(root: Path, database: str | None) -> Store:
    _require_extra()
    from harness.errors import HarnessError
    from service.jobs.store import Store, default_url

    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"cannot use {root}: {error.strerror}") from None
    return Store(database or default_url(root))


def _listen(host: str, port: int) -> socket.socket:
    """Bound before anything begins, so that a port that is taken is said in one line."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with ExitStack() as undo:
            listening = undo.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            undo.pop_all()
            return listening
    except OSError as error:
        raise UsageError(f"cannot listen at {host} port {port}: {error.strerror}") from None


def _raise_file_limit() -> None:
    """Each client that follows a run is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _require_extra() -> None:
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise UsageError(f"`ringsmith serve` needs {', '.join(missing)}: pip install 'ringsmith[serve]'")


def _set_up_logging() -> None:
    from agent.models import redaction

    class Redacted(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return redaction.from_error(super().format(record))

    handler = logging.StreamHandler()
    handler.setFormatter(Redacted("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=os.environ.get("RINGSMITH_LOG", "INFO").upper(), handlers=[handler])
    for noisy in ("uvicorn.error", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
