"""Attention of several ranges of queries over one list of keys, where exchanges overlap the attention.

Context parallelism of the video model Magi-1 ("context shuffle overlap"): ranks hold a slice of every range, and swap
tokens for heads.
"""

import torch
import torch.distributed as dist
from torch.nn import functional

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    query: torch.Tensor,
    key_value: torch.Tensor,
    k_ranges: torch.Tensor,
    cp_shuffle_num: int,
    clip_token_nums: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """`query`: (ranges * p, query_heads, dim); `key_value`: (ranges * p, key_heads, 2 * dim), the key before the value;
    both floating point, of one dtype. `cp_shuffle_num` is the number of ranges. Rows i * p to (i + 1) * p - 1 are this
    rank's part of range i, and all of range i are these parts in the order of ranks (ranks * p tokens).
    `clip_token_nums`: only the first so many tokens of each range are keys (None: all); the others are filling. These
    keys, range after range, are the list of keys. `k_ranges`: (ranges, 2) int64, the same on all ranks: queries of
    range i (filling, too) see keys k_ranges[i, 0] to k_ranges[i, 1] - 1 of that list, at least one; these may span any
    ranges. `group`: None for all ranks.
    query_heads is a multiple of the number of ranks and of key_heads; key_heads is a multiple of the number of ranks or
    a divisor of it. Consecutive query heads share a key head.

    Returns (ranges * p, query_heads, dim) in the query's dtype, for this rank's own tokens: softmax attention, scale
    dim ** -0.5.
    """
    ranks, (tokens, query_heads, _) = dist.get_world_size(group), query.shape
    key_heads = key_value.shape[1]
    if tokens % cp_shuffle_num:
        raise ValueError(f"{tokens} tokens are not {cp_shuffle_num} ranges")
    if query_heads % ranks or (key_heads % ranks and ranks % key_heads):
        raise ValueError(f"{query_heads} and {key_heads} heads do not fit {ranks} ranks")
    if key_heads < ranks:
        key_value = key_value.repeat_interleave(ranks // key_heads, dim=1)
    parts = query.chunk(cp_shuffle_num)
    arriving = _to_heads(parts[0], group)

    length = ranks * tokens // cp_shuffle_num
    pieces, work = _to_heads(key_value, group)
    work.wait()
    # (ranks, ranges, p, heads, 2 * dim) to the list of keys (heads, keys, 2 * dim)
    whole = torch.stack(pieces).unflatten(1, (cp_shuffle_num, -1)).transpose(0, 1).flatten(1, 2)
    keys = whole[:, : length if clip_token_nums is None else clip_token_nums].flatten(0, 1).transpose(0, 1)

    output, leaving = torch.empty_like(query), []
    for i, (first, last) in enumerate(k_ranges.tolist()):
        pieces, work = arriving
        work.wait()
        if i + 1 < cp_shuffle_num:
            arriving = _to_heads(parts[i + 1], group)
        own = _attention(torch.cat(pieces).transpose(0, 1), keys[:, first:last]).transpose(0, 1)
        leaving.append(_to_tokens(own, group))
    for out, (pieces, work) in zip(output.chunk(cp_shuffle_num), leaving, strict=True):
        work.wait()
        torch.cat(pieces, dim=1, out=out)
    return output


def _to_heads(x: torch.Tensor, group: dist.ProcessGroup | None) -> tuple[list[torch.Tensor], dist.Work]:
    """Begin to swap own tokens for own heads; the result is a list of every rank's tokens."""
    pieces = [piece.contiguous() for piece in x.chunk(dist.get_world_size(group), dim=1)]
    received = [torch.empty_like(piece) for piece in pieces]
    return received, dist.all_to_all(received, pieces, group=group, async_op=True)


def _to_tokens(x: torch.Tensor, group: dist.ProcessGroup | None) -> tuple[list[torch.Tensor], dist.Work]:
    """Begin to swap back; the result is a list of every rank's heads."""
    pieces = [piece.contiguous() for piece in x.chunk(dist.get_world_size(group))]
    received = [torch.empty_like(piece) for piece in pieces]
    return received, dist.all_to_all(received, pieces, group=group, async_op=True)


def _attention(query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
    """(heads, tokens, dim), (fewer heads, keys, 2 * dim)"""
    key_value = key_value.repeat_interleave(len(query) // len(key_value), dim=0)
    key, value = (half.contiguous()[None] for half in key_value.chunk(2, dim=-1))
    # There is no fused kernel for float64: bound the size of the matrix of scores.
    rows = 128 if query.dtype is torch.float64 else query.shape[1]
    blocks = [functional.scaled_dot_product_attention(part[None], key, value)[0] for part in query.split(rows, dim=1)]
    return torch.cat(blocks, dim=1) if len(blocks) > 1 else blocks[0]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    ranges, chunk, query_heads, key_heads = _sizes(case, ctx.world_size)
    part, dim = -(-chunk // ctx.world_size), case["dim"]
    tokens = ranges * part
    if case.name == "pkb":
        bounds = torch.arange(ranges, device=ctx.device)[:, None] * chunk + torch.tensor([0, chunk], device=ctx.device)
        query, key_value = ctx.randn(tokens, query_heads, dim), ctx.randn(tokens, key_heads, 2 * dim)
        return query, key_value, bounds, ranges, chunk, None
    # Peaked attention: each query has about sixteen keys of its own topic in the whole list.
    common = ctx.shared()
    topics = common.randn(max(4, ranges * chunk // 16), key_heads, dim, dtype=torch.float32)
    query = ctx.randn(tokens, query_heads, dim, dtype=torch.float32) * 0.5
    query += topics[ctx.integers(0, len(topics), tokens)].repeat_interleave(query_heads // key_heads, dim=1)
    key_value = ctx.randn(tokens, key_heads, 2 * dim, dtype=torch.float32)
    key_value[..., :dim] *= 0.5
    key_value[..., :dim] += topics[ctx.integers(0, len(topics), tokens)]
    # Filling is large, so that nobody can mistake it for keys.
    filling = torch.arange(part, device=ctx.device) + ctx.rank * part >= chunk
    key_value[filling.repeat(ranges)] *= 8
    return query.to(ctx.dtype), key_value.to(ctx.dtype), _windows(case, ctx), ranges, chunk, None


def _windows(case: Case, ctx: RankContext) -> torch.Tensor:
    """Each range sees most of itself and the end of the one before: always as many keys, ending where is drawn."""
    ranges, chunk, *_ = _sizes(case, ctx.world_size)
    seen = torch.tensor(_seen(case, ctx.world_size), device=ctx.device)
    last = torch.arange(1, ranges + 1, device=ctx.device) * chunk
    last -= ctx.stream("windows").integers(0, chunk // 4 + 1, ranges)
    return torch.stack([last - seen, last], dim=1)


def _seen(case: Case, world_size: int) -> list[int]:
    """Keys that each range sees."""
    ranges, chunk, *_ = _sizes(case, world_size)
    return [chunk] * ranges if case.name == "pkb" else [chunk - chunk // 4] + [chunk + chunk // 2] * (ranges - 1)


def _sizes(case: Case, world_size: int) -> tuple[int, int, int, int]:
    """Ranges, tokens of each, query heads and key heads, as published: on more than four ranks another model, and heads
    that fit the number of ranks."""
    many = world_size > 4 and "chunk_above_4" in case.sizes
    chunk, heads = (case["chunk_above_4"], case["heads_above_4"]) if many else (case["chunk"], case["heads"])
    key_heads = case["key_heads"]
    if key_heads % world_size and world_size % key_heads:
        key_heads = world_size
    return case["ranges"], chunk, heads // world_size * world_size, key_heads


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    ranges, chunk, query_heads, key_heads = _sizes(case, world_size)
    dim, part = case["dim"], -(-chunk // world_size)
    seen = _seen(case, world_size)
    queries = ranges * part * query_heads * dim
    # Windows leave out half a range at most, and this is a mean over ranks.
    used = ranges * chunk if case.name == "pkb" else ranges * chunk - chunk // 2
    keys = used / world_size * key_heads * 2 * dim
    # Sets of u ranks swap queries and outputs for heads, and keys of the own heads come from everywhere.
    others = world_size - 1
    link_in = min((u - 1) / u * 2 * queries + others / u * keys for u in range(1, world_size + 1))
    return Work(
        flops=4 * dim * query_heads * part * sum(seen),
        hbm_bytes=(2 * queries + keys) * element_bytes,
        # With multicast the own keys leave once, and queries may stay.
        link_out_bytes=others / world_size * keys * element_bytes,
        link_in_bytes=link_in * element_bytes,
    )


def illegal(case: Case, world_size: int) -> str | None:
    _, _, query_heads, key_heads = _sizes(case, world_size)
    if query_heads == 0 or query_heads % key_heads:
        return f"{query_heads} query heads and {key_heads} key heads do not fit {world_size} ranks"
    return None


PROBLEM = Problem(
    title="Attention over selected ranges of keys, pipelined with all-to-alls",
    family="context",
    source="Magi-1",
    tags=("all_to_all", "attention", "gemm", "overlap", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        # Magi-1's 4.5B and 24B models: the second on more than four ranks.
        "pkb": {
            "ranges": 4,
            "chunk": 12150,
            "heads": 24,
            "chunk_above_4": 21600,
            "heads_above_4": 48,
            "key_heads": 8,
            "dim": 128,
        },
        # One token more, so that the last part of a range is filled up on any number of ranks.
        "default": {
            "ranges": 4,
            "chunk": 12151,
            "heads": 24,
            "chunk_above_4": 21601,
            "heads_above_4": 48,
            "key_heads": 8,
            "dim": 128,
        },
        # The 24B model on any number of ranks.
        "large": {"ranges": 4, "chunk": 21601, "heads": 48, "key_heads": 8, "dim": 128},
        "odd": {"ranges": 3, "chunk": 131, "heads": 8, "key_heads": 2, "dim": 40},
        "tiny": {"ranges": 3, "chunk": 11, "heads": 8, "key_heads": 2, "dim": 8},
    },
    repair=(
        "As published thousands of random keys average to nearly nothing, so that losing a tenth of them or 8-bit keys "
        "go unnoticed, and each range sees exactly itself. By default attention is peaked, ranges see part of the one "
        "before, and filling is large."
    ),
    illegal=illegal,
)
