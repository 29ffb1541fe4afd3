import torch

from problems.spec import Arguments

# More taps than published: a halo of six positions is a small part of a row of 256.
TRIAL = {"b": 1, "c": 64, "l": 128, "k": 15}


def convolve(ranks: list[Arguments], sequence: torch.Tensor, causal: bool = True) -> list[torch.Tensor]:
    """Each rank's filter over the whole sequence, tap by tap; then the rank's two chunks of it."""
    size, length = len(ranks), ranks[0][0].shape[-1] // 2
    answers = []
    for rank, (_, weight) in enumerate(ranks):
        taps = weight.shape[-1]
        padded = torch.nn.functional.pad(sequence, (taps - 1, 0) if causal else (0, taps - 1))
        y = sum(weight[:, :, j] * padded[..., j : j + sequence.shape[-1]] for j in range(taps))
        chunks = y.split(length, dim=-1)
        answers.append(torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], dim=-1))
    return answers


def natural(ranks: list[Arguments]) -> torch.Tensor:
    halves = [x.chunk(2, dim=-1) for x, _ in ranks]
    return torch.cat([early for early, _ in halves] + [late for _, late in reversed(halves)], dim=-1)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return convolve(ranks, natural(ranks))


def ahead(ranks: list[Arguments]) -> list[torch.Tensor]:
    return convolve(ranks, natural(ranks), causal=False)


def first_weight(ranks: list[Arguments]) -> list[torch.Tensor]:
    return convolve([(x, ranks[0][1]) for x, _ in ranks], natural(ranks))


def contiguous_blocks(ranks: list[Arguments]) -> list[torch.Tensor]:
    """As if rank r held chunks 2r and 2r+1."""
    sequence, answers = torch.cat([x for x, _ in ranks], dim=-1), []
    for rank, (x, weight) in enumerate(ranks):
        padded = torch.nn.functional.pad(sequence, (weight.shape[-1] - 1, 0))
        y = torch.nn.functional.conv1d(padded, weight, groups=weight.shape[0])
        answers.append(y[..., rank * x.shape[-1] : (rank + 1) * x.shape[-1]])
    return answers


def no_halo(ranks: list[Arguments]) -> list[torch.Tensor]:
    answers = []
    for x, weight in ranks:
        halves = [torch.nn.functional.pad(half, (weight.shape[-1] - 1, 0)) for half in x.chunk(2, dim=-1)]
        answers.append(torch.cat([torch.nn.functional.conv1d(h, weight, groups=weight.shape[0]) for h in halves], -1))
    return answers


NEEDLESS = {
    "int8 on the wire, a scale per row": "a row is the values of a channel's halo: scaled by themselves they err "
    "hardly more than bfloat16 does"
}
WRONG = {
    "acausal": ahead,
    "rank 0's weight": first_weight,
    "contiguous blocks": contiguous_blocks,
    "zeros for halos": no_halo,
}
