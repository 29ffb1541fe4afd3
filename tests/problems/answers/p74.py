import torch

from problems.spec import Arguments, Subgroups

unit = torch.nn.functional.normalize


def steps(own: Arguments, decaying: bool = True, correcting: bool = True) -> torch.Tensor:
    """Step by step, as the recurrence is written. (batch, time, heads, value_dim)"""
    q, k, v, g, beta, a_log, dt_bias = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in own[:7])
    q, k = unit(q, dim=-1) / q.shape[-1] ** 0.5, unit(k, dim=-1)
    gate = torch.sigmoid(a_log.exp()[:, None] * (g + dt_bias.reshape(g.shape[2:])))
    decay, b = torch.exp(-5 * gate), beta.sigmoid()[..., None]
    state, outputs = torch.zeros(*q.shape[::2], q.shape[-1], v.shape[-1], dtype=q.dtype), []
    for t in range(q.shape[1]):
        if decaying:
            state = state * decay[:, t, :, :, None]
        recalled = torch.einsum("bhk,bhkv->bhv", k[:, t], state) if correcting else 0
        state = state + k[:, t, :, :, None] * (b[:, t] * (v[:, t] - recalled))[:, :, None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1)


def sets(groups: Subgroups | None, ranks: list[Arguments]) -> tuple[tuple[int, ...], ...]:
    return groups.sets if groups else (tuple(range(len(ranks))),)


def answers(ranks: list[Arguments], summed: bool = True, **how: bool) -> list[torch.Tensor]:
    alone: list[torch.Tensor] = [None] * len(ranks)
    for block in sets(ranks[0][7], ranks):
        whole = [torch.cat([ranks[rank][i] for rank in block], dim=1) for i in range(5)]
        for rank, own in zip(block, steps((*whole, *ranks[0][5:7]), **how).chunk(len(block), dim=1), strict=True):
            alone[rank] = own
    return pairs(alone, ranks) if summed else alone


def pairs(alone: list[torch.Tensor], ranks: list[Arguments]) -> list[torch.Tensor]:
    if ranks[0][8] is None:
        return alone
    peers = {rank: pair for pair in ranks[0][8].sets for rank in pair}
    return [sum(alone[peer] for peer in peers[rank]) for rank in range(len(ranks))]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return answers(ranks)


def from_zero(ranks: list[Arguments]) -> list[torch.Tensor]:
    return pairs([steps(own) for own in ranks], ranks)


def without_decay(ranks: list[Arguments]) -> list[torch.Tensor]:
    return answers(ranks, decaying=False)


def without_correction(ranks: list[Arguments]) -> list[torch.Tensor]:
    return answers(ranks, correcting=False)


def backwards(ranks: list[Arguments]) -> list[torch.Tensor]:
    return answers(ranks[::-1])[::-1]


def without_sum(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Without pairs the first rank's answer for all."""
    alone = answers(ranks, summed=False)
    return alone if ranks[0][8] else [alone[0]] * len(ranks)


WRONG = {
    "each rank from a state of zeros": from_zero,
    "without decay": without_decay,
    "plain linear attention": without_correction,
    "blocks in reverse order": backwards,
    "not summed over pairs": without_sum,
}
TRIAL = {"batch": 1, "tokens": 40, "heads": 4, "key_dim": 32, "value_dim": 24}
