from collections.abc import Callable

import torch

from problems.spec import Arguments
from tests.problems.answers.p82 import removed, rows_of


def gradient(ranks: list[Arguments], top_k: int | None, top_p: float) -> list[torch.Tensor]:
    rows, target = rows_of(ranks)
    out, upstream = removed(rows, top_k, top_p), ranks[0][2].to(rows.dtype).reshape(-1, 1)
    truth = torch.zeros_like(rows).scatter(1, target, 1.0)
    return shards((truth - rows.masked_fill(out, -torch.inf).softmax(-1)) * upstream * ~out, ranks)


def shards(whole: torch.Tensor, ranks: list[Arguments]) -> list[torch.Tensor]:
    return [part.reshape(ranks[0][0].shape) for part in whole.chunk(len(ranks), dim=1)]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return gradient(ranks, *ranks[0][4:6])


def other(top_k: int | None = 10, top_p: float = 0.9) -> Callable[[list[Arguments]], list[torch.Tensor]]:
    return lambda ranks: gradient(ranks, top_k, top_p)


def removed_targets_too(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Without the mask at the end, a removed target gets the upstream gradient."""
    rows, target = rows_of(ranks)
    kept = rows.masked_fill(removed(rows, *ranks[0][4:6]), -torch.inf).softmax(-1)
    truth = torch.zeros_like(rows).scatter(1, target, 1.0)
    return shards((truth - kept) * ranks[0][2].to(rows.dtype).reshape(-1, 1), ranks)


def without_upstream(ranks: list[Arguments]) -> list[torch.Tensor]:
    return gradient([(*own[:2], torch.ones_like(own[2]), *own[3:]) for own in ranks], *ranks[0][4:6])


def dropped_tokens(ranks: list[Arguments]) -> list[torch.Tensor]:
    """No gradient for tokens whose target is removed."""
    rows, target = rows_of(ranks)
    out = removed(rows, *ranks[0][4:6]).gather(1, target).view(ranks[0][1].shape)
    return [own.masked_fill(out.unsqueeze(-1), 0.0) for own in oracle(ranks)]


WRONG = {
    "without top-k": other(top_k=None),
    "without top-p": other(top_p=1.0),
    "removed targets too": removed_targets_too,
    "without the upstream gradient": without_upstream,
    "no gradient where the target is removed": dropped_tokens,
}
TRIAL = {"batch": 2, "tokens_per_rank": 256, "vocabulary_per_rank": 64, "chunk_per_rank": 100}
