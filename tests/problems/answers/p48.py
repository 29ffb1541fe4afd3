import torch

from problems.spec import Arguments


def whole(ranks: list[Arguments]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three matrices, put together block by block."""
    n_tp, n_fsdp = ranks[0][4:]
    at = [[ranks[f * n_tp + t] for t in range(n_tp)] for f in range(n_fsdp)]
    W1, W2 = (torch.cat([torch.cat([own[i] for own in line], 1) for line in at]) for i in (1, 2))
    W3 = torch.cat([torch.cat([at[f][t][3] for f in range(n_fsdp)], 1) for t in range(n_tp)])
    return W1, W2, W3


def layer(x: torch.Tensor, W1: torch.Tensor, W2: torch.Tensor, W3: torch.Tensor) -> torch.Tensor:
    gate = x @ W1
    return (gate * torch.sigmoid(gate) * (x @ W2)) @ W3


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [layer(own[0], *whole(ranks)) for own in ranks]


def other_gate(ranks: list[Arguments]) -> list[torch.Tensor]:
    W1, W2, W3 = whole(ranks)
    return [layer(own[0], W2, W1, W3) for own in ranks]


def no_gate(ranks: list[Arguments]) -> list[torch.Tensor]:
    W1, W2, W3 = whole(ranks)
    return [((own[0] @ W1) * (own[0] @ W2)) @ W3 for own in ranks]


def stacked_rows(ranks: list[Arguments]) -> list[torch.Tensor]:
    """W3's blocks under one another in memory, as they are gathered."""
    n_tp, n_fsdp = ranks[0][4:]
    W1, W2, W3 = whole(ranks)
    parts = [torch.cat([ranks[f * n_tp + t][3] for f in range(n_fsdp)]).reshape(-1, W3.shape[1]) for t in range(n_tp)]
    return [layer(own[0], W1, W2, torch.cat(parts)) for own in ranks]


def next_rows(ranks: list[Arguments]) -> list[torch.Tensor]:
    right, n_tp = oracle(ranks), ranks[0][4]
    return right[n_tp:] + right[:n_tp]


WRONG = {
    "gate and up projection exchanged": other_gate,
    "without silu": no_gate,
    "third matrix as it is gathered": stacked_rows,
    "the next rows": next_rows,
}
