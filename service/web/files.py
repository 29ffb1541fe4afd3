"""Files that pages lead to: a run as one file, its events, its traces, a sweep's report."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, Response

from harness.errors import RingsmithError, UsageError
from service.web.site import Site


def router(site: Site) -> APIRouter:
    routes = APIRouter(prefix="/files", include_in_schema=False)

    @routes.get("/runs/{run_id}/page.html")
    def run_file(run_id: str) -> Response:
        from runs.exports.page import run_page
        from runs.record import Record

        try:
            text = run_page(Record.open(_folder(site, run_id)))
        except RingsmithError as error:
            raise HTTPException(422, str(error)) from None
        return HTMLResponse(text.encode(errors="replace"))

    @routes.get("/runs/{run_id}/events.jsonl")
    def events(run_id: str) -> Response:
        return _file(_folder(site, run_id) / "events.jsonl", f"{run_id}.jsonl", "application/x-ndjson")

    @routes.get("/runs/{run_id}/traces/{name}")
    def trace(run_id: str, name: str) -> Response:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise HTTPException(404, "no such trace")
        return _file(_folder(site, run_id) / "traces" / name, name, "application/json")

    @routes.get("/sweeps/{name}/report.html")
    def report(name: str) -> Response:
        try:
            folder = site.keeper.sweeps.record(name).path
            return HTMLResponse(_report(folder, os.stat(folder / "events.jsonl").st_mtime_ns))
        except UsageError as error:
            raise HTTPException(422, str(error)) from None
        except OSError:
            raise HTTPException(404, "the sweep has no runs yet") from None

    return routes


@functools.lru_cache(maxsize=8)
def _report(folder: Path, changed_ns: int) -> bytes:
    """Kept until a run of the sweep begins or ends: hundreds of records take seconds."""
    from runs.report.html import as_html
    from runs.report.study import study
    from runs.report.tables import tables

    found = study([folder])
    return as_html(found, tables(found)).encode(errors="replace")


def _folder(site: Site, run_id: str) -> Path:
    try:
        return site.keeper.tail(run_id).path
    except UsageError as error:
        raise HTTPException(404, str(error)) from None


def _file(path: Path, name: str, kind: str) -> Response:
    if path.is_symlink() or not path.is_file():
        raise HTTPException(404, "no such file")
    return FileResponse(path, media_type=kind, filename=name)
