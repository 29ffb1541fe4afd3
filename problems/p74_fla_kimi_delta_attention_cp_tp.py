"""Kimi delta attention: linear attention over a sequence sharded across ranks, then a sum over tensor-parallel ranks.

Long-context training of Kimi Linear (flash-linear-attention) with context and tensor parallelism.
"""

import torch
import torch.distributed as dist
from torch.nn import functional

from problems.spec import Arguments, Case, Problem, RankContext, Subgroups, Work

# Steps that are handled as one matrix product. A step decays by exp(-5) at most, so that within half of such a chunk
# even the inverse of all decay is within float32's range.
CHUNK = 16


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    cp_group: dist.ProcessGroup | None = None,
    tp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """All floating point, of one dtype. `q`, `k`, `g` (before its activation): (batch, time, heads, key_dim); `v`:
    (batch, time, heads, value_dim); `beta` (before its sigmoid): (batch, time, heads). These are this rank's steps: the
    ranks of `cp_group` (None for all ranks) hold equal consecutive blocks of the sequence, in the order of ranks.
    `a_log`: (heads,) and `dt_bias`: (heads * key_dim,), the same on all ranks.
    `tp_group`: None, or ranks with the same steps and different q, k, v, g, beta, whose outputs are added.

    Returns (batch, time, heads, value_dim) in q's dtype: this rank's steps, summed over `tp_group`. Per head, in
    float32, from a state S (key_dim, value_dim) of zeros before the first step of the sequence:
        S = decay[:, None] * S, with decay = exp(-5 * sigmoid(exp(a_log) * (g + dt_bias)))
        S = S + outer(k, sigmoid(beta) * (v - k @ S)), with k normalised to length 1
        output = q @ S, with q normalised to length 1 and divided by sqrt(key_dim)
    """
    index, time = dist.get_rank(cp_group), q.shape[1]
    heads, key_dim = q.shape[2:]
    # What comes after the own steps has no influence on them.
    until = (index + 1) * time
    q, k, v, g, beta = (_gathered(x, cp_group)[:, :until] for x in (q, k, v, g, beta))
    wide = torch.promote_types(q.dtype, torch.float32)
    rate = a_log.to(wide).exp()[:, None] * (g.to(wide) + dt_bias.to(wide).view(heads, key_dim))
    output = _delta_rule(
        functional.normalize(q.to(wide), dim=-1, eps=1e-12) * key_dim**-0.5,
        functional.normalize(k.to(wide), dim=-1, eps=1e-12),
        v.to(wide),
        -5 * rate.sigmoid(),
        beta.to(wide).sigmoid(),
    )
    output = output[:, -time:].to(q.dtype).contiguous()
    if tp_group is not None and dist.get_world_size(tp_group) > 1:
        dist.all_reduce(output, group=tp_group)
    return output


def _gathered(own: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return torch.cat(parts, dim=1)


def _delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """The recurrence, chunk by chunk. (batch, time, heads, dim) in and out; `beta` (batch, time, heads)."""
    batch, time, heads, _ = q.shape
    q, k, v, log_decay, beta = (_chunks(x) for x in (q, k, v, log_decay, beta.unsqueeze(-1)))
    # With D[t] the decay from the chunk's start to step t and u[t] what step t adds at key k[t],
    # S[t] = D[t] S + sum over s <= t of (D[t] / D[s]) k[s] u[s].
    total = log_decay.cumsum(dim=-2)
    centre, end = total[..., CHUNK // 2 - 1 : CHUNK // 2, :], total[..., -1:, :]
    rise, fall = (total - centre).exp(), (centre - total).exp()
    from_start, to_end = total.exp(), (end - total).exp()
    # u[t] = beta[t] (v[t] - k[t] D[t] S - sum over s < t of (k[t] D[t] / D[s] k[s]) u[s]): triangular equations.
    system = beta * ((k * rise) @ (k * fall).mT).tril(-1)
    known = torch.cat([beta * v, beta * k * from_start], dim=-1)
    solved = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    fresh, recalled = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    within = ((q * rise) @ (k * fall).mT).tril()
    asked, kept, carried = q * from_start, (k * to_end).mT, end.exp().mT

    state = v.new_zeros(batch * heads, k.shape[-1], v.shape[-1])
    outputs = torch.empty_like(v)
    for i in range(len(v)):
        added = torch.baddbmm(fresh[i], recalled[i], state, alpha=-1)
        torch.bmm(asked[i], state, out=outputs[i]).baddbmm_(within[i], added)
        state = torch.baddbmm(carried[i] * state, kept[i], added)
    # (chunks, batch * heads, step, dim) to (batch, chunks * step, heads, dim)
    ordered = outputs.unflatten(1, (batch, heads)).permute(1, 0, 3, 2, 4)
    return ordered.reshape(batch, -1, heads, v.shape[-1])[:, :time]


def _chunks(x: torch.Tensor) -> torch.Tensor:
    """(batch, time, heads, dim) to (chunks, batch * heads, step, dim); steps of zeros fill the last chunk."""
    x = functional.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % CHUNK))
    return x.unflatten(1, (-1, CHUNK)).permute(1, 0, 3, 2, 4).flatten(1, 2).contiguous()


def inputs(case: Case, ctx: RankContext) -> Arguments:
    shape = case["batch"], case["tokens"], case["heads"]
    key_dim, value_dim, common = case["key_dim"], case["value_dim"], ctx.shared()
    groups = _groups(ctx.world_size)
    if case.name == "pkb":
        q, k, g = (ctx.randn(*shape, key_dim) for _ in range(3))
        v, beta = ctx.randn(*shape, value_dim), ctx.randn(*shape)
        a_log = common.uniform(shape[2], low=-0.1, high=0.1)
        return q, k, v, g, beta, a_log, common.uniform(shape[2] * key_dim, low=-0.1, high=0.1), *groups
    # Queries ask for what was stored under one of a few keys, often by an earlier rank.
    topics = common.randn(max(2, key_dim // 2), key_dim, dtype=torch.float32)
    q, k = (
        topics[ctx.integers(0, len(topics), *shape)] + ctx.randn(*shape, key_dim, dtype=torch.float32) * 0.4
        for _ in range(2)
    )
    # Outputs of order one, as q is divided by sqrt(key_dim).
    v = ctx.randn(*shape, value_dim, dtype=torch.float32) * key_dim**0.5
    # Decay of 0.9 to 0.999 each step, different in each channel.
    dt_bias = common.uniform(shape[2] * key_dim, low=-8.0, high=-4.0)
    a_log = common.uniform(shape[2], low=-0.1, high=0.1)
    return (
        q.to(ctx.dtype),
        k.to(ctx.dtype),
        v.to(ctx.dtype),
        ctx.randn(*shape, key_dim),
        ctx.randn(*shape),
        a_log,
        dt_bias,
        *groups,
    )


def _groups(world_size: int) -> tuple[Subgroups | None, Subgroups | None]:
    """Two ranks of tensor parallelism where their number is even and at least four."""
    if world_size < 4 or world_size % 2:
        return None, None
    pairs = range(0, world_size, 2)
    return (
        Subgroups((tuple(pairs), tuple(pair + 1 for pair in pairs))),
        Subgroups(tuple((pair, pair + 1) for pair in pairs)),
    )


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    cp_groups, tp_groups = _groups(world_size)
    context = len(cp_groups.sets[0]) if cp_groups else world_size
    streams, steps = case["batch"] * case["heads"], case["tokens"]
    key_dim, value_dim = case["key_dim"], case["value_dim"]
    state, output = key_dim * value_dim, steps * value_dim
    # What a block adds to the state has at most the rank of its steps. Of earlier blocks their state or their steps
    # must arrive; the last block but one hands on what it adds.
    added = min(state, steps * (key_dim + value_dim))
    arriving = min(state, (context - 1) * steps * (key_dim + value_dim))
    summed = output if tp_groups else 0
    return Work(
        # With an earlier block's state: read it for keys and for queries, or compare all steps with each other.
        flops=streams * steps * min(4 * state, steps * 2 * (key_dim + value_dim)),
        hbm_bytes=streams * steps * (3 * key_dim + 2 * value_dim + 1) * element_bytes,
        link_out_bytes=streams * (added + summed) * element_bytes if world_size > 1 else 0,
        link_in_bytes=streams * (arriving + summed) * element_bytes if world_size > 1 else 0,
    )


PROBLEM = Problem(
    title="Kimi delta attention over a sharded sequence, summed over tensor-parallel pairs",
    family="context",
    source="flash-linear-attention",
    tags=("all_gather", "all_reduce", "attention", "recurrence", "subgroups"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"batch": 1, "tokens": 64, "heads": 16, "key_dim": 128, "value_dim": 128},
        "default": {"batch": 1, "tokens": 64, "heads": 16, "key_dim": 128, "value_dim": 128},
        # Kimi Linear 48B (32 heads of 128) over two tensor-parallel ranks, 2048 steps on each.
        "large": {"batch": 1, "tokens": 2048, "heads": 16, "key_dim": 128, "value_dim": 128},
        "odd": {"batch": 2, "tokens": 37, "heads": 3, "key_dim": 43, "value_dim": 29},
        "tiny": {"batch": 1, "tokens": 9, "heads": 2, "key_dim": 8, "value_dim": 6},
    },
    repair=(
        "As published a step leaves a tenth of the state, so each rank alone, from a state of zeros, is right within "
        "the published tolerance, and results are below it. By default decay is 0.9 to 0.999, keys recur, results are "
        "of order one."
    ),
)
