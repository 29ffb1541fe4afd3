"""A PostgreSQL of a test's own: a cluster in a folder, which ends with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

_FOLDERS = ("/usr/local/bin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)))


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS]))


def lacking() -> str:
    """Why there can be none; empty if there can."""
    if not (_program("initdb") and _program("pg_ctl")):
        return "PostgreSQL's initdb and pg_ctl are not installed"
    if os.getuid() == 0 and not _program("setpriv"):
        return "PostgreSQL refuses to run as root, and setpriv is not installed"
    return ""


class Cluster:
    """Listens at a socket in its folder only."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._data, self._databases = self._folder / "data", 0
        # It refuses to run as root.
        self._as: list[str] = []
        if os.getuid() == 0:
            shutil.chown(self._folder, 65534, 65534)
            self._as = [str(_program("setpriv")), "--reuid=65534", "--regid=65534", "--clear-groups"]
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "ringsmith", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={self._folder} -c fsync=off"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-o", options, "-l", log, "-w", "-t", "60", "start")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def new_database(self) -> str:
        """Its URL."""
        import psycopg

        self._databases += 1
        name = f"test{self._databases}"
        with psycopg.connect(
            host=str(self._folder), user="ringsmith", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        return f"postgresql://ringsmith@/{name}?host={self._folder}"

    def _run(self, program: str, *arguments: str) -> None:
        # Into a file: what the server inherits must not keep a pipe open.
        log = self._folder / f"{program}.log"
        with log.open("ab") as output:
            done = subprocess.run(
                [*self._as, str(_program(program)), *arguments],
                stdout=output,
                stderr=output,
                cwd="/",
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )
        assert done.returncode == 0, log.read_text()[-2000:]
