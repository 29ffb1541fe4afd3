import torch

from problems.spec import Arguments
from tests.problems.answers.p54 import dense, up_to_the_own, whole_blocks

TRIAL = {"m": 1024, "n": 1024}  # the published sizes are small


def projected(ranks: list[Arguments]) -> list[torch.Tensor]:
    """Queries, keys and values of the whole sequence, each (batch, seq, heads, head_dim), in float64."""
    qkv = torch.cat([own[0].double() @ own[1].double().T for own in ranks], dim=1)
    return [part.unflatten(-1, (ranks[0][4], -1)) for part in qkv.chunk(3, dim=-1)]


def layer(ranks: list[Arguments], q, k, v, scale: float | None, seen: torch.Tensor | None) -> list[torch.Tensor]:
    parts = dense(q, k, v, scale, seen).flatten(2).chunk(len(ranks), dim=1)
    return [(part @ own[2].double().T).to(own[0].dtype) for part, own in zip(parts, ranks, strict=True)]


def oracle(ranks: list[Arguments]) -> list[torch.Tensor]:
    q, k, v = projected(ranks)
    causal, *over_sequence = ranks[0][5:]
    if over_sequence == [True]:
        return layer(ranks, q, k, v, None, up_to_the_own(q.shape[1]) if causal else None)
    return over_heads(ranks)


def over_heads(ranks: list[Arguments]) -> list[torch.Tensor]:
    q, k, v = projected(ranks)
    causal, heads = ranks[0][5], ranks[0][4] // len(ranks)
    attended = torch.empty_like(v)
    for i in range(0, ranks[0][4], heads):
        # What `dense` calls positions are heads here, and what it calls batch are positions.
        own = [t[:, :, i : i + heads].flatten(0, 1).unsqueeze(2) for t in (q, k, v)]
        seen = up_to_the_own(heads) if causal and q.shape[1] > 1 else None
        attended[:, :, i : i + heads] = dense(*own, None, seen).squeeze(2).unflatten(0, q.shape[:2])
    parts = attended.flatten(2).chunk(len(ranks), dim=1)
    return [(part @ own[2].double().T).to(own[0].dtype) for part, own in zip(parts, ranks, strict=True)]


def own_part(ranks: list[Arguments]) -> list[torch.Tensor]:
    return [oracle([own])[0] for own in ranks]


def no_mask(ranks: list[Arguments]) -> list[torch.Tensor]:
    return layer(ranks, *projected(ranks), None, None)


def mask_of_blocks(ranks: list[Arguments]) -> list[torch.Tensor]:
    q, k, v = projected(ranks)
    return layer(ranks, q, k, v, None, whole_blocks(q.shape[1], len(ranks)))


def no_scale(ranks: list[Arguments]) -> list[torch.Tensor]:
    q, k, v = projected(ranks)
    return layer(ranks, q, k, v, 1.0, up_to_the_own(q.shape[1]))


def heads_out_of_order(ranks: list[Arguments]) -> list[torch.Tensor]:
    q, k, v = (t.flip(2) for t in projected(ranks))
    return layer(ranks, q, k, v, None, up_to_the_own(q.shape[1]))


WRONG = {
    "over heads, as published": over_heads,
    "own part of the sequence only": own_part,
    "no mask": no_mask,
    "mask between ranks only": mask_of_blocks,
    "scores not scaled": no_scale,
    "heads in reverse order": heads_out_of_order,
}
