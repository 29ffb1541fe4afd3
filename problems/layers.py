"""What several layer problems share: matrices whose inner axis is sharded over the ranks.

For `inputs`, `work` and `illegal` only. A `reference` is shown to models on its own and must not import from here.
"""

from __future__ import annotations

from problems.spec import Arguments, Case, RankContext, Work


def inner(case: Case, world_size: int) -> int:
    """Length of the inner axis over all ranks: `k`, or `k_per_rank` times the world size."""
    return case["k"] if "k" in case.sizes else case["k_per_rank"] * world_size


def uneven_inner(case: Case, world_size: int) -> str | None:
    """Why the inner axis cannot be cut into equal blocks, or None if it can."""
    k = inner(case, world_size)
    return f"k={k} does not divide evenly over {world_size} ranks" if k % world_size else None


def gathered_product_inputs(case: Case, ctx: RankContext) -> Arguments:
    """This rank's columns of a common left matrix, and its own right matrix."""
    m, n, k = case["m"], case["n"], inner(case, ctx.world_size)
    # Unit-scale outputs, so that a flat absolute tolerance such as PKB's means something.
    return ctx.randn(m, k // ctx.world_size), ctx.randn(k, n, dtype=ctx.wide).mul_(k**-0.5).to(ctx.dtype)


def gathered_product_work(case: Case, world_size: int, element_bytes: int) -> Work:
    """Of a product with a left matrix that is sharded along the inner axis."""
    m, n, k = case["m"], case["n"], inner(case, world_size)
    shard, others = m * k // world_size, world_size - 1
    # Either the shard reaches the others (once, if the fabric multicasts) or what it adds to their products does
    # (then only sums arrive, if the switch adds).
    return Work(
        flops=2 * m * n * k,
        hbm_bytes=(shard + k * n + m * n) * element_bytes,
        link_out_bytes=min(shard, others * m * n) * element_bytes,
        link_in_bytes=min(others * shard, m * n if others else 0) * element_bytes,
    )
