import torch

from problems.spec import Arguments

TRIAL = {"m": 1024, "n": 1024}  # the published sizes are small


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole = torch.cat([x for x, *_ in ranks], dim=2)
    batch, seq, heads, channels = whole.shape
    part = -(-seq // len(ranks))
    padded = whole.new_zeros(batch, part * len(ranks), heads, channels)
    padded[:, :seq] = whole
    return list(padded.split(part, dim=1))


def reversed_(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle(ranks)[::-1]


def heads_interleaved(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole = torch.stack([x for x, *_ in ranks], dim=3).flatten(2, 3)
    return list(whole.chunk(len(ranks), dim=1))


def own_heads_only(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [torch.cat([x.chunk(len(ranks), 1)[rank]] * len(ranks), 2) for rank, (x, *_) in enumerate(ranks)]


WRONG = {
    "sequence in reverse rank order": reversed_,
    "heads interleaved": heads_interleaved,
    "own heads for everybody's": own_heads_only,
}
