"""Ring attention: keys and values go round the ring while each rank attends to the block that it has; blocks are merged
by a running maximum and a running sum, as in flash attention.
"""

import torch
import torch.distributed as dist

from harness import kit


def _exchange(block, rank, world):
    """Sends the block to the right neighbour and returns the left neighbour's, with what is to be waited for."""
    arriving = torch.empty_like(block)
    send = dist.P2POp(dist.isend, block, (rank + 1) % world)
    receive = dist.P2POp(dist.irecv, arriving, (rank - 1) % world)
    return arriving, dist.batch_isend_irecv([send, receive])


def solution(q, k, v, softmax_scale=None, causal=False, group=None):
    rank, world = kit.rank(), kit.world_size()
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    queries = q.transpose(1, 2).to(wide) * scale
    batch, heads, seq, dim = queries.shape

    block = torch.stack((k, v))
    top = torch.full((batch, heads, seq, 1), float("-inf"), dtype=wide)
    total = torch.zeros((batch, heads, seq, 1), dtype=wide)
    out = torch.zeros((batch, heads, seq, dim), dtype=wide)
    for step in range(world):
        if step < world - 1:  # the next block travels meanwhile
            arriving, transfers = _exchange(block, rank, world)
        owner = (rank - step) % world
        if owner <= rank or not causal:
            keys, values = block.to(wide).transpose(2, 3)
            scores = queries @ keys.transpose(-1, -2)
            if causal and owner == rank:
                later = torch.ones(seq, seq, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(later, float("-inf"))
            peak = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights = (scores - peak).exp()
            shrink = (top - peak).exp()
            total = total * shrink + weights.sum(-1, keepdim=True)
            out = out * shrink + weights @ values
            top = peak
        if step < world - 1:
            for transfer in transfers:
                transfer.wait()
            block = arriving
    return (out / total).to(q.dtype).transpose(1, 2).contiguous()
