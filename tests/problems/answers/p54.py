import torch

from problems.spec import Arguments

TRIAL = {"m": 1024, "n": 1024}  # the published sizes are small


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, seen: torch.Tensor | None
) -> torch.Tensor:
    """Attention over a whole sequence; (batch, seq, heads, head_dim)."""
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double())
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if seen is not None:
        scores = torch.where(seen, scores, -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v.double())


def up_to_the_own(positions: int) -> torch.Tensor:
    return torch.ones(positions, positions, dtype=torch.bool).tril()


def whole_blocks(positions: int, ranks: int) -> torch.Tensor:
    """A rank's whole block and those before it."""
    block = torch.arange(positions) // (positions // ranks)
    return block[:, None] >= block[None]


def attend(ranks: list[Arguments], scale: float | None, seen: torch.Tensor | None) -> list[torch.Tensor]:
    q, k, v = (torch.cat([own[i] for own in ranks], dim=1) for i in range(3))
    return [part.to(q.dtype) for part in dense(q, k, v, scale, seen).chunk(len(ranks), dim=1)]


def positions(ranks: list[Arguments]) -> int:
    return len(ranks) * ranks[0][0].shape[1]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    *_, scale, causal, _ = ranks[0]
    return attend(ranks, scale, up_to_the_own(positions(ranks)) if causal else None)


def own_block(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [oracle([own])[0] for own in ranks]


def no_mask(ranks: list[Arguments]) -> list[torch.Tensor]:
    return attend(ranks, ranks[0][3], None)


def mask_of_blocks(ranks: list[Arguments]) -> list[torch.Tensor]:
    return attend(ranks, ranks[0][3], whole_blocks(positions(ranks), len(ranks)))


def no_scale(ranks: list[Arguments]) -> list[torch.Tensor]:
    return attend(ranks, 1.0, up_to_the_own(positions(ranks)))


def blocks_averaged(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Each block's attention counts alike, whatever its log-sum-exp."""
    answers = []
    for rank, (q, _, _, scale, _, _) in enumerate(ranks):
        parts = [
            dense(q, k, v, scale, up_to_the_own(q.shape[1]) if j == rank else None)
            for j, (_, k, v, *_) in enumerate(ranks[: rank + 1])
        ]
        answers.append((sum(parts) / len(parts)).to(q.dtype))
    return answers


WRONG = {
    "own block only": own_block,
    "no mask": no_mask,
    "mask between blocks only": mask_of_blocks,
    "scores not scaled": no_scale,
    "blocks averaged": blocks_averaged,
}
