"""ZeRO-1 step: rank 0's parameters for all, gradients of the own rows, each rank sums and updates its part of the
parameters, and all collect the parts. Everything is computed in float32 and rounded at the end.
"""

import torch

from harness import kit

_states = {}


class _State:
    def __init__(self, count, wide, dtype):
        self.start = kit.symmetric((count,), dtype)
        self.grads = kit.symmetric((count,), wide)
        self.updated = kit.symmetric((count,), dtype)


def _gradients(x, y, w1, b1, w2, b2):
    """Of mean((w2 relu(w1 x + b1) + b2 - y)^2), flat."""
    h = torch.relu(x @ w1.T + b1)
    d_out = (h @ w2.T + b2 - y) * (2.0 / y.numel())
    d_h = (d_out @ w2) * (h > 0)
    return torch.cat([(d_h.T @ x).flatten(), d_h.sum(0), (d_out.T @ h).flatten(), d_out.sum(0)])


def _split(flat, like):
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like)]  # noqa: B905


def solution(X_local, y_local, W1, b1, W2, b2, exp_avg_part, exp_avg_sq_part, lr, beta1, beta2, eps, step):
    rank, world = kit.rank(), kit.world_size()
    weights = (W1, b1, W2, b2)
    count, dtype = sum(w.numel() for w in weights), W1.dtype
    wide = torch.promote_types(dtype, torch.float32)
    if (count, dtype) not in _states:
        _states[count, dtype] = _State(count, wide, dtype)
    state = _states[count, dtype]

    # Only rank 0's parameters count.
    if rank == 0:
        state.start.local.copy_(torch.cat([w.flatten() for w in weights]))
    state.start.barrier()
    flat = state.start.peer(0).to(wide)

    state.grads.local.copy_(_gradients(X_local.to(wide), y_local.to(wide), *_split(flat, weights)))
    state.grads.barrier()  # all gradients are there

    part = count // world
    mine = slice(rank * part, (rank + 1) * part)
    grad = torch.zeros(part, dtype=wide)
    for r in range(world):
        grad += state.grads.peer(r)[mine]
    grad /= world

    m = beta1 * exp_avg_part.to(wide) + (1 - beta1) * grad
    v = beta2 * exp_avg_sq_part.to(wide) + (1 - beta2) * grad * grad
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    own = flat[mine] - lr * m_hat / (v_hat.sqrt() + eps)

    state.updated.local[mine] = own.to(dtype)
    state.updated.barrier()  # all parts are updated
    result = torch.empty(count, dtype=dtype)
    for r in range(world):
        result[r * part : (r + 1) * part] = state.updated.peer(r)[r * part : (r + 1) * part]
    state.updated.barrier()  # all have read
    return *_split(result, weights), m.to(dtype), v.to(dtype)
