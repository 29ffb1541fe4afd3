"""What several problem files share: moving roots and row counts that follow the world size.

For `inputs`, `work` and `illegal` only. A `reference` is shown to models on its own and must not import from here.
"""

from __future__ import annotations

from problems.spec import Case, RankContext


def root(case: Case, ctx: RankContext) -> int:
    """The rank that sends or receives: 0 as published, otherwise drawn per trial, the same on every rank."""
    return 0 if case.name == "pkb" else ctx.shared().integer(0, ctx.world_size)


def rows(case: Case, world_size: int) -> int:
    """Rows of a matrix that is cut into one row block per rank: `m`, or `m_per_rank` times the world size."""
    return case["m"] if "m" in case.sizes else case["m_per_rank"] * world_size


def uneven_rows(case: Case, world_size: int) -> str | None:
    """Why the rows cannot be cut into equal blocks, or None if they can."""
    m = rows(case, world_size)
    return f"m={m} does not divide evenly over {world_size} ranks" if m % world_size else None
