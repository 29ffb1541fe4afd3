import torch

from problems.spec import Arguments


def exchanged(results: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.stack(results).transpose(0, 1).contiguous())


def scaled(y: torch.Tensor, s: torch.Tensor, block: int) -> torch.Tensor:
    return (y.flatten() * s.flatten().repeat_interleave(block)).reshape(y.shape)


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    return exchanged([scaled(*own) for own in ranks])


def unscaled(ranks: list[Arguments]) -> list[torch.Tensor]:
    return exchanged([y for y, _, _ in ranks])


def not_exchanged(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [scaled(*own).to(torch.float32) for own in ranks]


def scales_of_the_receiver(ranks: list[Arguments]) -> list[torch.Tensor]:
    # The payload is sent, the scales are not.
    payload = exchanged([y for y, _, _ in ranks])
    return [scaled(y, s, block) for y, (_, s, block) in zip(payload, ranks, strict=True)]


def next_scale(ranks: list[Arguments]) -> list[torch.Tensor]:
    return oracle([(y, s.roll(1, 1), block) for y, s, block in ranks])


WRONG = {
    "without the scales": unscaled,
    "not exchanged": not_exchanged,
    "the receiver's scales": scales_of_the_receiver,
    "the next block's scale": next_scale,
}
