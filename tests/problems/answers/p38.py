import torch

from problems.spec import Arguments

TRIAL = {"m": 1024, "n": 1024}  # the published sizes are small


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    whole = torch.cat([x for x, *_ in ranks], dim=1)
    unpadded, restore_shape = ranks[0][3:]
    if unpadded:  # one that the ranks divide is the padded length itself
        whole = whole[:, :unpadded]
    own = zip(*(third.chunk(len(ranks), -1) for third in whole.chunk(3, -1)), strict=True)
    return [torch.cat(thirds, -1) if restore_shape else torch.stack(thirds, -2) for thirds in own]


def reversed_(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle(ranks)[::-1]


def last_axis_cut_as_it_is(ranks: list[Arguments]) -> list[torch.Tensor]:
    return list(torch.cat([x for x, *_ in ranks], dim=1).chunk(len(ranks), -1))


def interleaved(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Queries, keys and values of one channel next to one another."""
    return [own.unflatten(-1, (3, -1)).transpose(-1, -2).flatten(-2) for own in oracle(ranks)]


WRONG = {
    "channels in reverse rank order": reversed_,
    "the last axis cut as it is": last_axis_cut_as_it_is,
    "queries, keys and values interleaved": interleaved,
}
