"""The database behind the service: SQLite in the runs' folder, or PostgreSQL by URL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import create_engine, delete, event, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from harness.errors import HarnessError, UsageError
from service.errors import ConflictError
from service.jobs.tables import Base, JobRow, KeyRow

KEY_DAYS = 7
"""How long an Idempotency-Key is remembered."""

Kind = Literal["run", "evaluation", "sweep"]
State = Literal["queued", "running", "ended", "failed"]


@dataclass(frozen=True)
class Once:
    """A request that is carried out once however often it is made: same `owner` and `key`, same `fingerprint`."""

    owner: str
    key: str
    fingerprint: str


def default_url(root: Path) -> str:
    return f"sqlite:///{root / 'service.sqlite'}"


class Store:
    """Thread-safe. Raises HarnessError where the database fails."""

    def __init__(self, url: str) -> None:
        """Makes the tables that there are not. Raises UsageError for what is no URL or has no driver here, HarnessError
        if the database cannot be opened. No message has the URL's password."""
        try:
            parsed = make_url(url)
            if parsed.drivername in ("postgresql", "postgres"):
                parsed = parsed.set(drivername="postgresql+psycopg")
            self.sqlite = parsed.get_backend_name() == "sqlite"
            if not self.sqlite and parsed.get_backend_name() != "postgresql":
                raise UsageError(f"{parsed.get_backend_name()} is not a database for this: sqlite or postgresql")
            self.name = parsed.render_as_string(hide_password=True)
            self._engine = create_engine(
                parsed,
                pool_pre_ping=not self.sqlite,
                pool_size=10,
                max_overflow=40,
                # A database that is SQL_ASCII would answer in bytes.
                connect_args={} if self.sqlite else {"client_encoding": "utf8"},
            )
        except (ArgumentError, ValueError):
            raise UsageError("that is not a database's URL: sqlite:///FILE or postgresql://USER@HOST/NAME") from None
        except ImportError as error:
            raise UsageError(f"no driver for that database: {error}") from None
        if self.sqlite:
            event.listen(self._engine, "connect", _set_up_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        self._writing = self._engine.execution_options(writes=True)
        with self._told():
            Base.metadata.create_all(self._engine)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def reads(self) -> Iterator[Session]:
        with self._told(), Session(self._engine) as session:
            yield session

    @contextmanager
    def writes(self) -> Iterator[Session]:
        """One transaction: all of the block, or nothing of it if it raises."""
        with self._told(), Session(self._writing, expire_on_commit=False) as session, session.begin():
            yield session

    def once(self, once: Once | None, act: Callable[[Session], str]) -> tuple[str, bool]:
        """What `act` answers, and whether it had been done before: then it is not called, and this is what it answered
        then. What it writes with its session and the key are in the database together or not at all. Raises
        ConflictError for a key that was used for another request.

        What else `act` does may be done twice if the process is killed just then."""
        if once is None:
            with self.writes() as session:
                return act(session), False
        try:
            with self.writes() as session:
                if (answered := _answered(session, once)) is not None:
                    return answered, True
                row = KeyRow(owner=once.owner, key=once.key, fingerprint=once.fingerprint, answer="", at=time.time())
                session.add(row)
                session.flush()  # PostgreSQL: a second one waits here until this one is done
                row.answer = act(session)
                return row.answer, False
        except _DuplicateError:
            with self.reads() as session:
                answered = _answered(session, once)
            if answered is None:
                raise ConflictError(f"the request with Idempotency-Key {once.key!r} is under way") from None
            return answered, True

    def job(self, kind: Kind, job_id: str) -> JobRow | None:
        with self.reads() as session:
            return session.get(JobRow, (kind, job_id))

    def unfinished(self) -> list[JobRow]:
        """Oldest first."""
        with self.reads() as session:
            wanted = select(JobRow).where(JobRow.state.in_(("queued", "running"))).order_by(JobRow.at, JobRow.id)
            return list(session.scalars(wanted))

    def set_job(self, kind: Kind, job_id: str, state: State, **changed: Any) -> None:
        if state in ("ended", "failed"):
            changed["ended_at"] = time.time()
        with self.writes() as session:
            session.execute(
                update(JobRow).where(JobRow.kind == kind, JobRow.id == job_id).values(state=state, **changed)
            )

    def forget_old_keys(self) -> None:
        with self.writes() as session:
            session.execute(delete(KeyRow).where(KeyRow.at < time.time() - KEY_DAYS * 86400))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLAlchemy's errors without statements and values: they may hold what nobody else is to see."""
        try:
            yield
        except IntegrityError:
            raise _DuplicateError("it is there already") from None
        except OperationalError as error:
            raise HarnessError(f"the database {self.name} fails: {_first_line(error)}") from None
        except SQLAlchemyError as error:
            raise HarnessError(f"the database {self.name} fails: {type(error).__name__}") from None


class _DuplicateError(ConflictError):
    pass


def _answered(session: Session, once: Once) -> str | None:
    row = session.get(KeyRow, (once.owner, once.key))
    if row is None:
        return None
    if row.fingerprint != once.fingerprint:
        raise ConflictError(f"Idempotency-Key {once.key!r} was used for another request")
    return row.answer


def _first_line(error: OperationalError) -> str:
    return str(error.orig).strip().split("\n", 1)[0][:300]


def _set_up_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Any) -> None:
    # A transaction that begins by reading and then writes may find that another has written meanwhile, and fail.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")
