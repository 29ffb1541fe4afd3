import torch

from problems.spec import Arguments

TRIAL = {"m": 1024, "n": 1024}  # the published sizes are small


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole = torch.cat([x for x, *_ in ranks], dim=1)
    heads, unpadded = whole.shape[2] // len(ranks), ranks[0][4]
    end = unpadded or whole.shape[1]  # one that the ranks divide is the padded length itself
    return [whole[:, :end, rank * heads : (rank + 1) * heads] for rank in range(len(ranks))]


def reversed_(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle(ranks)[::-1]


def heads_dealt_in_turn(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole = torch.cat([x for x, *_ in ranks], dim=1)
    return [whole[:, :, rank :: len(ranks)] for rank in range(len(ranks))]


def tokens_interleaved(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole, heads = torch.stack([x for x, *_ in ranks], dim=2).flatten(1, 2), ranks[0][0].shape[2] // len(ranks)
    return [whole[:, :, rank * heads : (rank + 1) * heads] for rank in range(len(ranks))]


WRONG = {
    "heads in reverse rank order": reversed_,
    "heads dealt out in turn": heads_dealt_in_turn,
    "tokens interleaved": tokens_interleaved,
}
