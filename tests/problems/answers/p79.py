import torch

from problems.spec import Arguments

TRIAL = {"queries": 128, "features": 256, "shard": 2900, "k": 20}

Answer = tuple[torch.Tensor, torch.Tensor]


def searched(ranks: list[Arguments], among: list[Arguments], smallest: bool = False) -> list[Answer]:
    train = torch.cat([own[1] for own in among], dim=1)
    labels = torch.cat([own[2][0] for own in among])
    answers = []
    for test, _, _, k, _ in ranks:
        similarity, order = (test @ train).sort(dim=1, descending=not smallest, stable=True)
        answers.append((similarity[:, :k], labels[order[:, :k]]))
    return answers


def oracle(ranks: list[Arguments]) -> list[Answer]:
    return searched(ranks, ranks)


def own_shard(ranks: list[Arguments]) -> list[Answer]:
    return [searched([own], [own])[0] for own in ranks]


def farthest(ranks: list[Arguments]) -> list[Answer]:
    return searched(ranks, ranks, smallest=True)


def places(ranks: list[Arguments]) -> list[Answer]:
    """Places in the list of all training features in place of labels."""
    first, numbered = 0, []
    for test, train, labels, *rest in ranks:
        numbered.append((test, train, torch.arange(first, first + labels.numel())[None], *rest))
        first += labels.numel()
    return searched(numbered, numbered)


def another_ranks(ranks: list[Arguments]) -> list[Answer]:
    """The answers to the next rank's queries."""
    answers = oracle(ranks)
    return answers[1:] + answers[:1]


WRONG = {
    "own shard only": own_shard,
    "the farthest": farthest,
    "places instead of labels": places,
    "another rank's queries": another_ranks,
}
