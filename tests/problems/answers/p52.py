import torch

from problems.spec import Arguments

TRIAL = {"p": 4096}


def decoded() -> torch.Tensor:
    """All numbers of float8 (e4m3) from 0 on: four bits of exponent, three of fraction, spelled out."""
    small = [step / 512 for step in range(8)]
    normal = [(8 + step) / 8 * 2.0 ** (power - 7) for power in range(1, 16) for step in range(8)]
    return torch.tensor(small + normal[:-1], dtype=torch.float64)  # the last pattern is NaN


def to_fp8(scaled: torch.Tensor) -> torch.Tensor:
    """The nearest of them; halves go to the even pattern. What is too large goes to the largest."""
    table = decoded()
    magnitude = scaled.abs().double().clamp_max(448)
    above = torch.searchsorted(table, magnitude).clamp_max(len(table) - 1)
    below = (above - 1).clamp_min(0)
    down, up = magnitude - table[below], table[above] - magnitude
    nearest = torch.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    return table[nearest] * scaled.double().sign()


def history_of(x: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    return torch.tensor([*history.tolist()[1:], float(x.abs().max())], dtype=history.dtype)


def image(x: torch.Tensor, peak: float) -> torch.Tensor:
    scale = max(peak, 1e-12) / 448
    return to_fp8(x.double() / scale) * scale


def gradients(images: list[torch.Tensor], ranks: list[Arguments]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    blocks = (sum(images) / len(ranks)).chunk(len(ranks))
    return [(block, history_of(*own)) for block, own in zip(blocks, ranks, strict=True)]


def oracle(ranks: list[Arguments]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return gradients([image(x, float(history_of(x, history).max())) for x, history in ranks], ranks)


def unrounded(ranks: list[Arguments]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return gradients([x.double() for x, _ in ranks], ranks)


def before_the_shift(ranks: list[Arguments]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return gradients([image(x, float(history.max())) for x, history in ranks], ranks)


def present_only(ranks: list[Arguments]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return gradients([image(x, float(x.abs().max())) for x, _ in ranks], ranks)


def common_scale(ranks: list[Arguments]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    peak = max(float(history_of(*own).max()) for own in ranks)
    return gradients([image(x, peak) for x, _ in ranks], ranks)


def not_shifted(ranks: list[Arguments]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (block, torch.cat([history[:-1], block.new_tensor([float(x.abs().max())]).to(history.dtype)]))
        for (block, _), (x, history) in zip(oracle(ranks), ranks, strict=True)
    ]


def summed(ranks: list[Arguments]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(block * len(ranks), history) for block, history in oracle(ranks)]


WRONG = {
    "not rounded": unrounded,
    "scale of the old history": before_the_shift,
    "scale of the present gradient alone": present_only,
    "one scale for all ranks": common_scale,
    "history not shifted": not_shifted,
    "sum": summed,
}
NEEDLESS = {"fp8 on the wire": "it is float8 already: in one case of eight the other scale differs by a power of two"}
