import torch

from problems.spec import Arguments
from tests.problems.answers.shared import everyone


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return everyone(torch.cat([x for x, _ in ranks], dim=ranks[0][1]), ranks)


def reversed_(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle(ranks[::-1])


def cut_to_equal_lengths(ranks: list[Arguments]) -> list[torch.Tensor]:
    """The right shape, but as if all parts were equally long: zeros fill the short ones."""
    (right,), axis = {own for own in map(lambda t: t.shape, oracle(ranks))}, ranks[0][1]
    mean = -(-right[axis] // len(ranks))
    pieces = []
    for x, _ in ranks:
        piece = x.new_zeros([mean if i == axis else size for i, size in enumerate(right)])
        kept = min(mean, x.shape[axis])
        piece.narrow(axis, 0, kept).copy_(x.narrow(axis, 0, kept))
        pieces.append(piece)
    return everyone(torch.cat(pieces, axis).narrow(axis, 0, right[axis]), ranks)


def all_as_long_as_the_own(ranks: list[Arguments]) -> list[torch.Tensor]:
    axis = ranks[0][1]
    return [
        torch.cat([x.narrow(axis, 0, min(own.shape[axis], x.shape[axis])) for x, _ in ranks], axis) for own, _ in ranks
    ]


WRONG = {
    "blocks in reverse order": reversed_,
    "cut to equal lengths": cut_to_equal_lengths,
    "all taken for as long as the own": all_as_long_as_the_own,
}
