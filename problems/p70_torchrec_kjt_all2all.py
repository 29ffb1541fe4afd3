"""Redistribution of jagged sparse features: each rank has its own samples of all keys, and afterwards all samples of
its own keys. (TorchRec's KJTAllToAll, in front of model-parallel embedding tables.)
"""

import torch
import torch.distributed as dist

from problems.graphs import clamp
from problems.spec import Arguments, Case, Problem, RankContext, Work


def runs(starts: torch.Tensor, counts: torch.Tensor, total: int) -> torch.Tensor:
    """starts[0], starts[0] + 1, ... (counts[0] of them), then the same for 1, 2, ...; `total` of them."""
    first = (starts - counts.cumsum(0) + counts).repeat_interleave(counts, output_size=total)
    return first + torch.arange(total, device=counts.device)


def reference(
    lengths: torch.Tensor,
    values: torch.Tensor,
    key_splits: list[int],
    batch_size: int,
    pg: dist.ProcessGroup | None = None,
    weights: torch.Tensor | None = None,
    stride_per_key: list[int] | None = None,
    stagger: int = 1,
) -> dict[str, torch.Tensor]:
    """Per rank, key after key:
    key_splits: W numbers, the same on every rank, zeros allowed: the first key_splits[0] keys go to rank 0, and so on.
    batch_size: samples of this rank, for every key; may differ by rank. Ignored if stride_per_key is given.
    stride_per_key: samples of each of this rank's sum(key_splits) keys; may differ by key and rank. Given on all ranks
        or on none.
    lengths (samples of all keys,), int64: key-major, how many values each sample has; zeros and very uneven ones occur.
    values (sum(lengths),), int64: ids from 0 to 999,999, in the order of lengths.
    weights (sum(lengths),), any floating-point dtype: belong to the values; given on all ranks or on none.
    stagger: a divisor of W. Sources are taken in the order x + (W // stagger) * y, with x = 0, 1, ... outside and
        y = 0, ..., stagger - 1 inside: rank order if it is 1.
    No rank knows another's batch sizes, strides or numbers of values.

    Returns, for the K = key_splits[rank] keys of this rank, a dict of (int64, but for weights)
    lengths, values and, if given, weights: key after key, and for each key the samples of all sources in their order;
    stride, 0-dimensional: the sum of all ranks' batch sizes, and stride_per_rank (W,): these, in rank order;
    or instead of the last two, if stride_per_key is given: stride_per_key_per_rank (K, W), columns in the sources'
        order.
    """
    world_size, rank = dist.get_world_size(pg), dist.get_rank(pg)
    device, keys = lengths.device, key_splits[rank]
    variable = stride_per_key is not None
    strides = stride_per_key if stride_per_key is not None else [batch_size] * sum(key_splits)
    ends = [sum(key_splits[: peer + 1]) for peer in range(world_size)]
    own_strides = [strides[end - split : end] for end, split in zip(ends, key_splits, strict=True)]
    lengths_to = [sum(own) for own in own_strides]
    values_to = torch.stack([part.sum() for part in lengths.split(lengths_to)]).tolist()

    # Everybody tells everybody the number of values, the batch size and, where they vary, the strides.
    told = [[n, batch_size, *(own if variable else [])] for n, own in zip(values_to, own_strides, strict=True)]
    header = torch.tensor([number for part in told for number in part], device=device)
    each = 2 + keys * variable
    headers = header.new_empty(world_size * each)
    dist.all_to_all_single(headers, header, [each] * world_size, [len(part) for part in told], group=pg)
    headers = headers.view(world_size, each)
    batch_sizes = headers[:, 1].contiguous()
    stride = headers[:, 2:] if variable else batch_sizes[:, None].expand(world_size, keys)  # by source and key
    values_from, *_ = headers.T.tolist()
    lengths_from = stride.sum(1).tolist()

    payloads = [(lengths, lengths_from, lengths_to), (values, values_from, values_to)]
    if weights is not None:
        payloads.append((weights, values_from, values_to))
    received, waiting = [], []
    for payload, splits_from, splits_to in payloads:
        received.append(payload.new_empty(sum(splits_from)))
        waiting.append(dist.all_to_all_single(received[-1], payload, splits_from, splits_to, group=pg, async_op=True))
    for transfer in waiting:
        transfer.wait()

    # What has come is source-major.
    sources = [x + world_size // stagger * y for x in range(world_size // stagger) for y in range(stagger)]
    counts = stride[sources].T.flatten()
    flat = stride.flatten()
    starts = (flat.cumsum(0) - flat).view(world_size, keys)[sources].T.flatten()
    at = torch.nn.functional.pad(received[0].cumsum(0), (1, 0))  # where each sample's values begin
    picked = runs(at[starts], at[starts + counts] - at[starts], sum(values_from))
    output = {"lengths": received[0][runs(starts, counts, sum(lengths_from))], "values": received[1][picked]}
    if weights is not None:
        output["weights"] = received[2][picked]
    if variable:
        output["stride_per_key_per_rank"] = counts.view(keys, world_size)
    else:
        output |= {"stride": batch_sizes.sum(), "stride_per_rank": batch_sizes}
    return output


def published_batch(case: Case, world_size: int) -> int:
    return clamp(case["m"] // world_size, 512, 1024) if "m" in case.sizes else case["batch"]


def key_count(case: Case, world_size: int) -> int:
    return sum(1 + rank % 3 for rank in range(world_size)) * case.sizes.get("keys", 1)


def batches(case: Case, world_size: int) -> list[int]:
    """Samples of the ranks, in any order; with strides that vary by key, the least they can be."""
    batch = published_batch(case, world_size)
    if case.name == "pkb" or world_size == 1:
        return [batch] * world_size
    if case["variable"]:
        return [-(-batch // 2)] * world_size
    return [batch * (3 * (world_size - 1) + 2 * i) // (4 * (world_size - 1)) for i in range(world_size)]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    world_size, device = ctx.world_size, ctx.device
    splits = [1 + rank % 3 for rank in range(world_size)]
    batch, ids = published_batch(case, world_size), 1000000
    if case.name == "pkb":
        lengths = ctx.integers(5, 21, sum(splits) * batch)
        return lengths, ctx.integers(0, ids, int(lengths.sum())), splits, batch, None, None, None, 1
    common = ctx.shared()
    order = common.permutation(world_size).tolist()
    splits = [splits[rank] * case["keys"] for rank in order]
    if world_size >= 4:  # one rank owns no key
        splits[order[0]] += splits[order[1]]
        splits[order[1]] = 0
    strides = None
    if case["variable"]:
        strides = ctx.integers(-(-batch // 2), batch + batch // 2 + 1, sum(splits))
    else:
        batch = batches(case, world_size)[order[ctx.rank]]
    stride = torch.full((sum(splits),), batch, device=device) if strides is None else strides
    # Exactly `pooling` values for each sample on average, and of each key most of them with a few samples.
    amount = stride * case["pooling"]
    key = torch.arange(len(stride), device=device).repeat_interleave(amount)
    place = (ctx.uniform(len(key), dtype=torch.float64) ** 4 * stride[key]).long()
    turned = (place + ctx.integers(0, 1 << 30, len(stride))[key]) % stride[key]
    lengths = ((stride.cumsum(0) - stride)[key] + turned).bincount(minlength=int(stride.sum()))
    values, weights = ctx.integers(0, ids, len(key)), ctx.randn(len(key))
    divisors = [divisor for divisor in range(1, world_size + 1) if world_size % divisor == 0]
    stagger = divisors[common.integer(0, len(divisors))]
    return lengths, values, splits, batch, None, weights, None if strides is None else strides.tolist(), stagger


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    samples, keys = batches(case, world_size), key_count(case, world_size)
    weight = 0 if case.name == "pkb" else element_bytes
    pooling = 11 if case.name == "pkb" else case["pooling"]  # as published 12.5 on average
    average = sum(samples) / world_size
    # On average over the ranks; keys may belong to those with most samples. An id below a million has 20 bits.
    moved = keys * (average - max(samples) / world_size) * pooling
    link = moved * (2.5 + weight) if world_size > 1 else 0
    return Work(hbm_bytes=2 * keys * average * (8 + pooling * (8 + weight)), link_out_bytes=link, link_in_bytes=link)


PROBLEM = Problem(
    title="Send jagged sparse features to the ranks that own their keys",
    family="other",
    source="TorchRec",
    tags=("all_to_all", "uneven", "embedding", "jagged"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024, "keys": 1, "pooling": 12, "variable": 0},
        # A recommendation model with 195 tables on 8 ranks, 4096 samples of each rank, a dozen ids of each.
        "large": {"keys": 13, "batch": 4096, "pooling": 12, "variable": 0},
        "odd": {"keys": 3, "batch": 61, "pooling": 5, "variable": 0},
        # Strides that vary by key.
        "tiny": {"keys": 1, "batch": 7, "pooling": 3, "variable": 1},
    },
    tolerance="exact",
    # Any id or weight may stand anywhere; lengths must go on adding up.
    changing=(1, 5),
    repair="As published batches are equal, lengths nearly so, and weights and staggered sources are never seen. "
    "`default` draws uneven batches, lengths from zero to hundreds, weights, a stagger, shuffled key splits and a rank "
    "without keys.",
)
