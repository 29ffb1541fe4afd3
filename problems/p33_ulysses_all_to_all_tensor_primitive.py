"""All-to-all that scatters one axis of a matrix and gathers another.

Ulysses sequence parallelism swaps "all heads of some tokens" for "some heads of all tokens" with it, and back.
"""

import torch
import torch.distributed as dist

from problems.shared import rows, uneven_rows
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    x: torch.Tensor, scatter_dim: int, gather_dim: int, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    pieces = [piece.contiguous() for piece in x.chunk(dist.get_world_size(group), dim=scatter_dim)]
    received = [torch.empty_like(piece) for piece in pieces]
    dist.all_to_all(received, pieces, group=group)
    return torch.cat(received, dim=gather_dim)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    # `pkb` and `large` keep the published direction, the others draw it per trial. `m` is the axis that is scattered.
    scatter_dim = 0 if case.name in ("pkb", "large") else ctx.shared().integer(0, 2)
    m, n = rows(case, ctx.world_size), case["n"]
    x = ctx.randn(m, n) if scatter_dim == 0 else ctx.randn(n, m)
    return x, scatter_dim, 1 - scatter_dim


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    matrix = rows(case, world_size) * case["n"] * element_bytes
    # Every piece has one reader, so no help from a switch: all but the own piece leave, as many arrive.
    link = matrix * (world_size - 1) / world_size
    return Work(hbm_bytes=2 * matrix, link_out_bytes=link, link_in_bytes=link)


PROBLEM = Problem(
    title="All-to-all that scatters one axis and gathers another",
    family="context",
    source="VeOmni",
    tags=("all_to_all", "sequence_parallel"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # After attention over 128k tokens with hidden size 8192, on 8 ranks.
        "large": {"m_per_rank": 16384, "n": 1024},
        "odd": {"m_per_rank": 131, "n": 517},
        "tiny": {"m_per_rank": 5, "n": 40},
    },
    tolerance="exact",
    illegal=uneven_rows,
)
