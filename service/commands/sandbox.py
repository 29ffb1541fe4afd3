"""`ringsmith sandbox serve`: let other machines evaluate candidates on this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError
from service.options import AcceptSuites, Isolation, finite

app = typer.Typer(help="Evaluate candidates for other machines.", no_args_is_help=True, rich_markup_mode=None)


@app.command("serve")
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on. Anything but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 8470,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The token that clients must show, or `sha256:` and its digest in hexadecimal. "
            "Default: $RINGSMITH_SANDBOX_TOKEN, if set.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate, PEM, with what signed it.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM.")] = None,
    isolation: Isolation = "auto",
    accept_suites: AcceptSuites = False,
    most_sessions: Annotated[int, typer.Option(min=1, max=256, help="Clients with processes here at once.")] = 8,
    idle: Annotated[
        float,
        typer.Option(
            min=5,
            callback=finite,
            metavar="SECONDS",
            help="End the processes of a client that was not heard this long.",
        ),
    ] = 600,
    max_request_mb: Annotated[float, typer.Option(min=0.01, callback=finite, help="Largest request, MB.")] = 8,
) -> None:
    """Serve until Ctrl-C or SIGTERM; the URL is printed once clients can connect. Clients share the GPUs by leases.

    Needs no model's client and no key (docs/remote.md). `--isolation` is the least that clients get.
    """
    from harness.sandboxes import TOKEN_VARIABLE, Access

    try:
        from harness.remote import credentials, server
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'ringsmith[node]'") from None
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    token = Access.given(token_file).token
    if token_file is not None and not token:
        raise UsageError(f"{token_file} is empty")
    if not token and not credentials.is_loopback(host):
        raise UsageError(f"listening on {host} needs a token: --token-file, or ${TOKEN_VARIABLE}")
    if token and tls_cert is None and not credentials.is_loopback(host):
        typer.echo("warning: without --tls-cert and --tls-key the token crosses the network in the clear", err=True)
    settings = server.Settings(
        token_hash=credentials.token_hash(token) if token else None,
        isolation=isolation,
        accepts_suites=accept_suites,
        most_sessions=most_sessions,
        idle_s=idle,
        most_request_bytes=int(max_request_mb * 1e6),
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    os.environ.pop(TOKEN_VARIABLE, None)
    server.serve(host, port, settings, lambda url: print(f"serving on {url}", flush=True))
