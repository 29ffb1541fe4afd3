from collections.abc import Callable

import torch

from problems.spec import Arguments


def rows_of(ranks: list[Arguments]) -> tuple[torch.Tensor, torch.Tensor]:
    """All logits (tokens, vocabulary) and targets (tokens, 1), in float32 at least."""
    whole = torch.cat([own[0] for own in ranks], dim=-1).flatten(0, 1)
    return whole.to(torch.promote_types(whole.dtype, torch.float32)), ranks[0][1].reshape(-1, 1)


def removed(rows: torch.Tensor, top_k: int | None, top_p: float) -> torch.Tensor:
    """Sorted in ascending order, as the filters are usually described."""
    values, order = rows.sort(dim=-1)
    out = torch.zeros_like(rows, dtype=torch.bool)
    if top_k:
        out |= values < values[:, -min(top_k, rows.shape[1]), None]
    if top_p < 1:
        mass = values.masked_fill(out, -torch.inf).softmax(-1).cumsum(-1)
        out |= mass <= 1 - top_p
        out[:, -1] = False
    return torch.zeros_like(out).scatter(1, order, out)


def scored(ranks: list[Arguments], top_k: int | None, top_p: float) -> list[torch.Tensor]:
    rows, target = rows_of(ranks)
    kept = rows.masked_fill(removed(rows, top_k, top_p), -torch.inf)
    return [kept.log_softmax(-1).gather(1, target).view(ranks[0][1].shape)] * len(ranks)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return scored(ranks, ranks[0][3], ranks[0][4])


def other(top_k: int | None = 10, top_p: float = 0.9) -> Callable[[list[Arguments]], list[torch.Tensor]]:
    return lambda ranks: scored(ranks, top_k, top_p)


def normalised_over_all(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Only targets are filtered."""
    filtered, (rows, target) = oracle(ranks)[0], rows_of(ranks)
    plain = rows.log_softmax(-1).gather(1, target).view(filtered.shape)
    return [plain.masked_fill(filtered.isinf(), -torch.inf)] * len(ranks)


def finite(ranks: list[Arguments]) -> list[torch.Tensor]:
    """The removed get the largest negative number."""
    return [own.clamp_min(torch.finfo(own.dtype).min) for own in oracle(ranks)]


WRONG = {
    "without top-k": other(top_k=None),
    "without top-p": other(top_p=1.0),
    "top 9": other(top_k=9),
    "normalised over all": normalised_over_all,
    "finite where the target is removed": finite,
}
TRIAL = {"batch": 2, "tokens_per_rank": 512, "vocabulary_per_rank": 96}
