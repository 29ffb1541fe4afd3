import torch

from problems.spec import Arguments
from tests.problems.answers.p54 import dense, up_to_the_own

TRIAL = {"m": 1024, "n": 1024}  # the published sizes are small

Gradients = tuple[torch.Tensor, ...]


def oracle(ranks: list[Arguments]) -> list[Gradients]:
    """The derivative of attention over each replica's whole sequence, by autograd: except in case `pkb`, out and
    log-sum-exp are what the forward pass gives."""
    return averaged(ranks, [_derivative(ranks, members) for members in ranks[0][8].sets])


def _derivative(ranks: list[Arguments], members: tuple[int, ...]) -> Gradients:
    with torch.enable_grad():
        dout, *qkv = (torch.cat([ranks[rank][i] for rank in members], dim=1).double() for i in range(4))
        qkv = [tensor.requires_grad_() for tensor in qkv]
        seen = up_to_the_own(dout.shape[1]) if ranks[0][7] else None
        return torch.autograd.grad(dense(*qkv, ranks[0][6], seen), qkv, dout)


def formula(
    ranks: list[Arguments], members: tuple[int, ...], masked: bool = True, delta: bool = True, scaled: bool = True
) -> Gradients:
    """The same from out and log-sum-exp as they are given."""
    dout, q, k, v, out = (torch.cat([ranks[rank][i] for rank in members], dim=1).double() for i in range(5))
    lse = torch.cat([ranks[rank][5] for rank in members], dim=2).double().unsqueeze(-1)
    scale = q.shape[-1] ** -0.5 if ranks[0][6] is None else ranks[0][6]
    scores = scale * torch.einsum("bihd,bjhd->bhij", q, k)
    p = (scores - lse).exp()
    if masked and ranks[0][7]:
        p = p * up_to_the_own(q.shape[1])
    t = torch.einsum("bihd,bjhd->bhij", dout, v)
    if delta:
        t = t - (dout * out).sum(-1).transpose(1, 2).unsqueeze(-1)
    t = p * t * (scale if scaled else 1)
    return (
        torch.einsum("bhij,bjhd->bihd", t, k),
        torch.einsum("bhij,bihd->bjhd", t, q),
        torch.einsum("bhij,bihd->bjhd", p, dout),
    )


def averaged(ranks: list[Arguments], replicas: list[Gradients], share: float | None = None) -> list[Gradients]:
    share = 1 / len(replicas) if share is None else share
    mean = [torch.stack(gradients).sum(0) * share for gradients in zip(*replicas, strict=True)]
    parts = zip(*(gradient.to(ranks[0][1].dtype).chunk(len(ranks[0][8].sets[0]), 1) for gradient in mean), strict=True)
    return list(parts) * len(replicas)


def each(ranks: list[Arguments], **how: bool) -> list[Gradients]:
    return [formula(ranks, members, **how) for members in ranks[0][8].sets]


def no_mask(ranks: list[Arguments]) -> list[Gradients]:
    return averaged(ranks, each(ranks, masked=False))


def no_delta(ranks: list[Arguments]) -> list[Gradients]:
    return averaged(ranks, each(ranks, delta=False))


def no_scale(ranks: list[Arguments]) -> list[Gradients]:
    return averaged(ranks, each(ranks, scaled=False))


def summed(ranks: list[Arguments]) -> list[Gradients]:
    return averaged(ranks, each(ranks), share=1.0)


def own_replica(ranks: list[Arguments]) -> list[Gradients]:
    return [answer for replica in each(ranks) for answer in averaged(ranks, [replica])[: len(ranks[0][8].sets[0])]]


WRONG = {
    "no mask": no_mask,
    "without the dot product of dout and out": no_delta,
    "without the scale": no_scale,
    "summed over replicas": summed,
    "own replica only": own_replica,
}
