"""The database's tables. Jobs, keys and tokens are the truth about themselves; `runs` is an index of the records and
can be made again."""

from __future__ import annotations

import time

from sqlalchemy import BigInteger, Boolean, Float, Index, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class JobRow(Base):
    __tablename__ = "jobs"

    kind: Mapped[str] = mapped_column(String(20), primary_key=True)
    """`run`, `evaluation` or `sweep`."""
    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    """The run's id, the sweep's name, or an id of the evaluation's own."""
    state: Mapped[str] = mapped_column(String(20), index=True)
    """`queued`, `running`, `ended` or `failed`."""
    asked: Mapped[str] = mapped_column(Text)
    """JSON."""
    by: Mapped[str] = mapped_column(String(100))
    """Name of the token; empty without one."""
    at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float)
    error: Mapped[str] = mapped_column(Text, default="")
    answer: Mapped[str | None] = mapped_column(Text)
    """JSON: what came of an evaluation, which has no record."""


class KeyRow(Base):
    """What a POST with an Idempotency-Key has been answered."""

    __tablename__ = "idempotency_keys"

    owner: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    answer: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(Float, index=True)


class TokenRow(Base):
    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    scope: Mapped[str] = mapped_column(String(20))
    hash: Mapped[str] = mapped_column(String(64))
    """SHA-256 of a secret of 256 random bits: nothing that could be guessed, so a slow hash adds nothing."""
    at: Mapped[float] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)


class RunIndex(Base):
    """What lists show of a run. `size` and `changed_ns` are those of the events that it was made from."""

    __tablename__ = "runs"

    path: Mapped[str] = mapped_column(String(500), primary_key=True)
    """Relative to the root."""
    run_id: Mapped[str] = mapped_column(String(200), index=True)
    sweep: Mapped[str] = mapped_column(String(200), default="", index=True)
    problem: Mapped[int] = mapped_column(Integer, index=True)
    name: Mapped[str] = mapped_column(String(200))
    case: Mapped[str] = mapped_column(String(200))
    suite: Mapped[str] = mapped_column(String(1000), default="")
    platform: Mapped[str] = mapped_column(String(20))
    world_size: Mapped[int] = mapped_column(Integer)
    dtype: Mapped[str] = mapped_column(String(20))
    backend: Mapped[str] = mapped_column(String(20))
    model: Mapped[str] = mapped_column(String(1000))
    strategy: Mapped[str] = mapped_column(String(100))
    state: Mapped[str] = mapped_column(String(20), index=True)
    reason: Mapped[str] = mapped_column(Text, default="")
    verdict: Mapped[str] = mapped_column(String(20), default="")
    target_met: Mapped[bool] = mapped_column(Boolean, default=False)
    helped: Mapped[bool] = mapped_column(Boolean, default=False)
    steps: Mapped[int] = mapped_column(Integer, default=0)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    speedup: Mapped[float | None] = mapped_column(Float)
    tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    usd: Mapped[float] = mapped_column(Float, default=0.0)
    wall_s: Mapped[float] = mapped_column(Float, default=0.0)
    device_s: Mapped[float] = mapped_column(Float, default=0.0)
    started_at: Mapped[float] = mapped_column(Float)
    finished_at: Mapped[float | None] = mapped_column(Float)
    size: Mapped[int] = mapped_column(BigInteger, default=-1)
    changed_ns: Mapped[int] = mapped_column(BigInteger, default=-1)

    __table_args__ = (Index("runs_newest", "started_at", "path"),)


def new_job(kind: str, job_id: str, asked: str, by: str) -> JobRow:
    return JobRow(kind=kind, id=job_id, state="queued", asked=asked, by=by, at=time.time(), error="")
