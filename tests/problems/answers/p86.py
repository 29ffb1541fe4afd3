from collections.abc import Callable
from functools import partial

import torch

from problems.spec import Arguments

# Polynomials of the singular values: coefficients of s, s**3 and s**5 in each step.
TABLES = {
    "simple": "3.4445 -4.7750 2.0315",
    "quintic": "4.0848 -6.8946 2.9270; 3.9505 -6.3029 2.6377; 3.7418 -5.5913 2.3037; 2.8769 -3.1427 1.2046; "
    "2.8366 -3.0525 1.2012",
    "polar_express": "8.2051 -22.9019 16.4607; 4.0664 -2.8612 0.5184; 3.9096 -2.8234 0.5250; 3.2856 -2.4647 0.5074; "
    "2.2779 -1.6447 0.4162; 1.8726 -1.2307 0.3585; 1.8564 -1.2132 0.3568; 1.8750 -1.2500 0.3750",
    "aol": "4.0098 -7.0585 2.4635; 3.4585 -5.5479 2.5959; 2.7573 -3.2939 1.4254; 2.7215 -3.0494 1.3169",
}


def iterated(s: torch.Tensor, steps: int, name: str, norm: float | None = None) -> torch.Tensor:
    s = s / (s.norm() if norm is None else norm)
    entries = [[float(number) for number in entry.split()] for entry in TABLES[name].split(";")]
    for a, b, c in (entries * steps)[:steps]:
        s = a * s + b * s**3 + c * s**5
    return s


def through_singular_values(ranks: list[Arguments], change: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    _, steps, name, axis = ranks[0]
    whole = torch.cat([own[0] for own in ranks], axis).double()
    U, s, V = torch.linalg.svd(whole, full_matrices=False)
    return list(((U * change(s, steps, name)) @ V).chunk(len(ranks), axis))


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return through_singular_values(ranks, iterated)


def one_step_less(ranks: list[Arguments]) -> list[torch.Tensor]:
    return through_singular_values(ranks, lambda s, steps, name: iterated(s, steps - 1, name))


def orthogonal(ranks: list[Arguments]) -> list[torch.Tensor]:
    """The goal of the iteration, which it does not reach."""
    return through_singular_values(ranks, lambda s, steps, name: torch.ones_like(s))


def own_part(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [oracle([own])[0] for own in ranks]


def own_norm(ranks: list[Arguments]) -> list[torch.Tensor]:
    found = []
    for i, own in enumerate(ranks):
        change = partial(iterated, norm=float(own[0].norm()))
        found.append(through_singular_values(ranks, change)[i])
    return found


def simple(ranks: list[Arguments]) -> list[torch.Tensor]:
    return through_singular_values(ranks, lambda s, steps, name: iterated(s, steps, "simple"))


WRONG = {
    "one step less": one_step_less,
    "the orthogonal matrix": orthogonal,
    "each part by itself": own_part,
    "divided by the own part's norm": own_norm,
    "coefficients of another table": simple,
}
