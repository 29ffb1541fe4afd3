"""Adam on the own shard in float32, then one all-gather of the updated shards."""

import torch
import torch.distributed as dist

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def solution(grad_shard, master_shard, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, step):
    dtype = master_shard.dtype
    wide = torch.promote_types(dtype, torch.float32)
    grad, weight = grad_shard.to(wide), master_shard.to(wide)

    m = beta1 * exp_avg.to(wide) + (1 - beta1) * grad
    v = beta2 * exp_avg_sq.to(wide) + (1 - beta2) * grad * grad
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    updated = (weight - lr * m_hat / (v_hat.sqrt() + eps)).to(dtype)

    gathered = torch.empty(dist.get_world_size() * updated.numel(), dtype=dtype)
    all_gather(gathered, updated)
    return gathered
