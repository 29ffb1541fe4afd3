"""Load-balancing loss: each rank works out its own from its own tokens; then the mean over ranks."""

import torch

from harness import kit

_losses = {}


def solution(gate_logits, num_experts, top_k=2, attention_mask=None):
    world = kit.world_size()
    logits = gate_logits if isinstance(gate_logits, torch.Tensor) else torch.cat(gate_logits)
    wide = torch.promote_types(logits.dtype, torch.float32)
    if wide not in _losses:
        _losses[wide] = kit.symmetric((1,), wide)
    losses = _losses[wide]

    probabilities = logits.to(wide).softmax(-1)
    chosen = torch.zeros_like(probabilities).scatter_(1, logits.topk(top_k, -1).indices, 1.0)
    weight = torch.ones(len(logits), dtype=wide)
    if attention_mask is not None:
        own = attention_mask.flatten().to(wide)
        weight *= own.repeat(len(logits) // len(own))
    tokens = weight.sum()  # divide at the end: ones add up without rounding
    losses.local.copy_(num_experts * ((weight @ chosen / tokens) * (weight @ probabilities / tokens)).sum())
    losses.barrier()  # all have published
    mean = sum(losses.peer(r) for r in range(world)) / world
    losses.barrier()  # all have read
    return mean.squeeze()
