import torch

from problems.spec import Arguments

unit = torch.nn.functional.normalize


def steps(own: Arguments, decaying: bool = True, correcting: bool = True) -> torch.Tensor:
    """Step by step, as the recurrence is written, with all heads' constants. (batch, time, heads, value_dim)"""
    q, k, v, gate, beta, a_log, dt_bias = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in own[:7])
    head = torch.arange(v.shape[2]) // (v.shape[2] // q.shape[2])
    q, k = unit(q, dim=-1)[:, :, head] / q.shape[-1] ** 0.5, unit(k, dim=-1)[:, :, head]
    decay = torch.exp(-a_log.exp() * torch.log1p((gate + dt_bias).exp()))
    state, outputs = torch.zeros(*q.shape[::2], q.shape[-1], v.shape[-1], dtype=q.dtype), []
    for t in range(q.shape[1]):
        if decaying:
            state = state * decay[:, t, :, None, None]
        recalled = torch.einsum("bhk,bhkv->bhv", k[:, t], state) if correcting else 0
        state = state + k[:, t, :, :, None] * (beta[:, t, :, None] * (v[:, t] - recalled))[:, :, None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1)


def constants(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [torch.cat([own[i] for own in ranks]) for i in (5, 6)]


def whole(ranks: list[Arguments], **how: bool) -> list[torch.Tensor]:
    sequence = [torch.cat([own[i] for own in ranks], dim=1) for i in range(5)]
    return list(steps((*sequence, *constants(ranks)), **how).chunk(len(ranks), dim=1))


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return whole(ranks)


def from_zero(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [steps((*own[:5], *constants(ranks))) for own in ranks]


def own_constants(ranks: list[Arguments]) -> list[torch.Tensor]:
    return whole([(*own[:5], *ranks[0][5:]) for own in ranks])


def without_decay(ranks: list[Arguments]) -> list[torch.Tensor]:
    return whole(ranks, decaying=False)


def without_correction(ranks: list[Arguments]) -> list[torch.Tensor]:
    return whole(ranks, correcting=False)


def backwards(ranks: list[Arguments]) -> list[torch.Tensor]:
    return whole([(*own[:5], *constant[5:]) for own, constant in zip(ranks[::-1], ranks, strict=True)])[::-1]


WRONG = {
    "each rank from a state of zeros": from_zero,
    "rank 0's constants for all heads": own_constants,
    "without decay": without_decay,
    "plain linear attention": without_correction,
    "blocks in reverse order": backwards,
}
TRIAL = {"batch": 1, "tokens": 40, "heads": 4, "value_heads_per_key_head": 1, "key_dim": 32, "value_dim": 24}
