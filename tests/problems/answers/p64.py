import torch

from problems.spec import Arguments

# Clipped sizes would not name a legal graph; these give some thousand edges.
TRIAL = {"nodes": 3000, "seeds": 128, "mean_degree": 16, "fanout_1": 10, "fanout_2": 5}


def walk(ranks: list[Arguments], rank: int, ask=None, last: bool = False, hops: int | None = None) -> tuple:
    """Node by node. `ask(v)`: the rank whose rows answer for v."""
    seeds, fanouts, _, _, owner = ranks[rank][:5]
    ask = ask or (lambda v: int(owner[v]))
    position = {int(v): i for i, v in enumerate(seeds)}
    frontier, found = list(position), []
    for fanout in fanouts[:hops]:
        following = []
        for v in frontier:
            row_ptr, col = ranks[ask(v)][2:4]
            stored = list(range(int(row_ptr[v]), int(row_ptr[v + 1])))
            if fanout >= 0:
                stored = stored[-fanout:] if last else stored[:fanout]
            for e in stored:
                neighbour = int(col[e])
                if neighbour not in position:
                    position[neighbour] = len(position)
                    following.append(neighbour)
                found.append((position[neighbour], position[v], e))
        frontier = following
    row, col, edge = torch.tensor(found, dtype=torch.int64).reshape(-1, 3).T.contiguous().unbind(0)
    return torch.tensor(list(position)), row, col, edge


def oracle(ranks: list[Arguments]) -> list[tuple]:
    return [walk(ranks, rank) for rank in range(len(ranks))]


def own_rows(ranks: list[Arguments]) -> list[tuple]:
    return [walk(ranks, rank, ask=lambda v, rank=rank: rank) for rank in range(len(ranks))]


def last_stored(ranks: list[Arguments]) -> list[tuple]:
    return [walk(ranks, rank, last=True) for rank in range(len(ranks))]


def one_hop(ranks: list[Arguments]) -> list[tuple]:
    return [walk(ranks, rank, hops=1) for rank in range(len(ranks))]


def ascending(ranks: list[Arguments]) -> list[tuple]:
    """New nodes numbered in ascending order, as a sort leaves them."""
    answers = []
    for own, (node, row, col, edge) in zip(ranks, oracle(ranks), strict=True):
        seeds = len(own[0])
        order = torch.cat([torch.arange(seeds), seeds + node[seeds:].argsort()])
        number = order.argsort()
        answers.append((node[order], number[row], number[col], edge))
    return answers


WRONG = {
    "own rows only": own_rows,
    "the last neighbours": last_stored,
    "first hop only": one_hop,
    "nodes in ascending order": ascending,
}
