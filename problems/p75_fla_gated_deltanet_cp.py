"""Gated DeltaNet: linear attention, with all-to-alls from shards of the sequence to shards of the heads and back.

Context parallelism of models such as Qwen3-Next (layers of flash-linear-attention), in the manner of Ulysses.
"""

import torch
import torch.distributed as dist
from torch.nn import functional

from problems.spec import Arguments, Case, Problem, RankContext, Work

CHUNK = 64  # steps that are handled as one matrix product


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """All floating point, of one dtype. `q`, `k`: (batch, time, key_heads, key_dim); `v`: (batch, time, value_heads,
    value_dim); `gate`, `beta` (between 0 and 1): (batch, time, value_heads). These are this rank's steps: ranks hold
    equal consecutive blocks of the sequence, in the order of ranks, with all heads. The numbers of heads are multiples
    of the number of ranks, and value_heads is a multiple of key_heads: consecutive value heads share a key head.
    `a_log`, `dt_bias`: (value_heads / ranks,), those of this rank's own block of heads. `group`: None for all ranks.

    Returns (batch, time, value_heads, value_dim) in q's dtype: this rank's steps. Per value head, in float32, from a
    state S (key_dim, value_dim) of zeros before the first step of the sequence:
        S = decay * S, with decay = exp(-exp(a_log) * softplus(gate + dt_bias)), a number
        S = S + outer(k, beta * (v - k @ S)), with k normalised to length 1
        output = q @ S, with q normalised to length 1 and divided by sqrt(key_dim)
    """
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v, gate, beta = (_exchanged(x, 2, 1, group).to(wide) for x in (q, k, v, gate, beta))
    q = functional.normalize(q, dim=-1, eps=1e-6) * q.shape[-1] ** -0.5
    k = functional.normalize(k, dim=-1, eps=1e-6)
    sharing, rest = divmod(v.shape[2], q.shape[2])
    assert not rest, "value heads must be a multiple of key heads"
    if sharing > 1:
        q, k = q.repeat_interleave(sharing, dim=2), k.repeat_interleave(sharing, dim=2)
    log_decay = -a_log.to(wide).exp() * functional.softplus(gate + dt_bias.to(wide))
    output = _delta_rule(q, k, v, log_decay, beta)
    return _exchanged(output.to(dtype), 1, 2, group)


def _exchanged(x: torch.Tensor, scatter: int, gather: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    pieces = [piece.contiguous() for piece in x.chunk(dist.get_world_size(group), dim=scatter)]
    received = [torch.empty_like(piece) for piece in pieces]
    dist.all_to_all(received, pieces, group=group)
    return torch.cat(received, dim=gather)


def _delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """The recurrence, chunk by chunk. (batch, time, heads, dim) in and out; decay and beta (batch, time, heads)."""
    batch, time, heads, _ = q.shape
    q, k, v, log_decay, beta = (_chunks(x) for x in (q, k, v, log_decay.unsqueeze(-1), beta.unsqueeze(-1)))
    # With D[t] the decay from the chunk's start to step t and u[t] what step t adds at key k[t],
    # S[t] = D[t] S + sum over s <= t of (D[t] / D[s]) k[s] u[s].
    total = log_decay.cumsum(dim=-2)
    end = total[..., -1:, :]
    ahead = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    between = (total - total.mT).masked_fill(ahead, -torch.inf).exp()
    # u[t] = beta[t] (v[t] - k[t] D[t] S - sum over s < t of (D[t] / D[s]) (k[t] k[s]) u[s]): triangular equations.
    system = beta * (k @ k.mT * between).tril(-1)
    known = torch.cat([beta * v, beta * k * total.exp()], dim=-1)
    solved = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    fresh, recalled = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    within = q @ k.mT * between
    asked, kept, carried = q * total.exp(), (k * (end - total).exp()).mT, end.exp()

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
    heads, sharing = _heads(case, ctx.world_size), case["value_heads_per_key_head"]
    shape, common = (case["batch"], case["tokens"]), ctx.shared()
    all_values, own = heads * sharing, heads * sharing // ctx.world_size
    block = slice(ctx.rank * own, (ctx.rank + 1) * own)
    key_dim, value_dim = case["key_dim"], case["value_dim"]
    beta = ctx.randn(*shape, all_values).sigmoid()
    if case.name == "pkb":
        q, k = ctx.randn(*shape, heads, key_dim), ctx.randn(*shape, heads, key_dim)
        v, gate = ctx.randn(*shape, all_values, value_dim), ctx.randn(*shape, all_values)
        a_log = common.uniform(all_values, high=0.2)[block].clone()
        return q, k, v, gate, beta, a_log, common.uniform(all_values, low=-0.1, high=0.1)[block].clone(), None
    # Queries ask for what was stored under one of a few keys, often by an earlier rank.
    topics = common.randn(max(2, min(64, key_dim // 2)), key_dim, dtype=torch.float32)
    q, k = (
        topics[ctx.integers(0, len(topics), *shape, heads)]
        + ctx.randn(*shape, heads, key_dim, dtype=torch.float32) * 0.4
        for _ in range(2)
    )
    # Outputs of order one, as q is divided by sqrt(key_dim).
    v = ctx.randn(*shape, all_values, value_dim, dtype=torch.float32) * key_dim**0.5
    # Decay of 0.9 to 0.999 each step; heads differ by their biases, which only their owner knows.
    a_log, dt_bias = common.uniform(all_values, low=-0.5, high=0.5), common.uniform(all_values, low=-6.5, high=-3.5)
    gate = ctx.randn(*shape, all_values)
    return (
        q.to(ctx.dtype),
        k.to(ctx.dtype),
        v.to(ctx.dtype),
        gate,
        beta,
        a_log[block].clone(),
        dt_bias[block].clone(),
        None,
    )


def _heads(case: Case, world_size: int) -> int:
    """Key heads: rounded up to a multiple of the number of ranks."""
    return -(-case["heads"] // world_size) * world_size


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    heads, sharing, steps = _heads(case, world_size), case["value_heads_per_key_head"], case["batch"] * case["tokens"]
    key_dim, value_dim, value_heads = case["key_dim"], case["value_dim"], heads * sharing
    state, given = key_dim * value_dim, steps * (2 * heads * key_dim + value_heads * (value_dim + 2))
    output = steps * value_heads * value_dim
    # Either steps go to the heads' owners and back, or a block's state, or what it is made of, goes to the next block.
    exchanged = (given + output) * (world_size - 1) / world_size
    factors = case["tokens"] * (key_dim + value_dim)
    streams = case["batch"] * value_heads
    handed, arriving = streams * min(state, factors), streams * min(state, (world_size - 1) * factors)
    return Work(
        # With an earlier block's state: read it for keys and for queries, or compare all steps with each other.
        flops=value_heads * steps * min(4 * state, case["tokens"] * 2 * (key_dim + value_dim)),
        hbm_bytes=(given + output + 2 * value_heads // world_size) * element_bytes,
        link_out_bytes=min(exchanged, handed) * element_bytes if world_size > 1 else 0,
        link_in_bytes=min(exchanged, arriving) * element_bytes if world_size > 1 else 0,
    )


PROBLEM = Problem(
    title="Gated DeltaNet with all-to-alls between shards of sequence and heads",
    family="context",
    source="flash-linear-attention",
    tags=("all_to_all", "attention", "recurrence", "sequence_parallel"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {
            "batch": 1,
            "tokens": 64,
            "heads": 6,
            "value_heads_per_key_head": 1,
            "key_dim": 256,
            "value_dim": 512,
        },
        "default": {
            "batch": 1,
            "tokens": 64,
            "heads": 6,
            "value_heads_per_key_head": 1,
            "key_dim": 256,
            "value_dim": 512,
        },
        # Qwen3-Next 80B: 16 key heads and 32 value heads of 128; 4096 steps on each rank.
        "large": {
            "batch": 1,
            "tokens": 4096,
            "heads": 16,
            "value_heads_per_key_head": 2,
            "key_dim": 128,
            "value_dim": 128,
        },
        "odd": {
            "batch": 2,
            "tokens": 37,
            "heads": 3,
            "value_heads_per_key_head": 3,
            "key_dim": 43,
            "value_dim": 29,
        },
        "tiny": {"batch": 1, "tokens": 9, "heads": 2, "value_heads_per_key_head": 2, "key_dim": 8, "value_dim": 6},
    },
    repair=(
        "As published a step leaves less than half of the state, so each rank alone, from a state of zeros, is right "
        "within the published tolerance, and results are below it. By default decay is 0.9 to 0.999, keys recur, "
        "results are of order one, and the heads' constants are drawn."
    ),
)
