import torch

from problems.spec import Arguments

Plan = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def plans(ranks: list[Arguments], owner: list[int], slots: slice = slice(None)) -> list[Plan]:
    """`owner[x]`: the rank of expert x."""
    size = len(ranks)
    count = [[int((mask[x, slots] == 1).sum()) for x in range(len(owner))] for mask, _, _ in ranks]
    found = []
    for rank in range(size):
        mine = [x for x in range(len(owner)) if owner[x] == rank]
        table = torch.tensor([[count[source][x] for x in mine] for source in range(size)])
        sends = [sum(count[rank][x] for x in range(len(owner)) if owner[x] == to) for to in range(size)]
        floating = table.to(ranks[0][0].dtype)
        found.append((torch.tensor(sends), table.sum(1), floating, floating.sum(0)))
    return found


def oracle(ranks: list[Arguments]) -> list[Plan]:
    experts = ranks[0][1]
    return plans(ranks, [x * len(ranks) // experts for x in range(experts)])


def dealt(ranks: list[Arguments]) -> list[Plan]:
    return plans(ranks, [x % len(ranks) for x in range(ranks[0][1])])


def first_slot(ranks: list[Arguments]) -> list[Plan]:
    experts = ranks[0][1]
    return plans(ranks, [x * len(ranks) // experts for x in range(experts)], slice(1))


def as_sent(ranks: list[Arguments]) -> list[Plan]:
    return [(sends, sends, table, total) for sends, _, table, total in oracle(ranks)]


WRONG = {
    "experts dealt to ranks in turn": dealt,
    "one choice per token": first_slot,
    "as much received as sent": as_sent,
}
