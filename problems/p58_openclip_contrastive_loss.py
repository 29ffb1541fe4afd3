"""Sigmoid loss of image and text pairs (SigLIP): each rank's images against all ranks' texts, which go round.

OpenCLIP's bidirectional variant: in each round texts move one rank to the left and to the right at once.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def block_loss(scaled: torch.Tensor, texts: torch.Tensor, bias: float, own: bool) -> torch.Tensor:
    """The sum over all images and these texts, by the number of images; only an own text of the same row is a match."""
    logits = scaled @ texts.T + bias
    signs = -torch.ones_like(logits)
    if own:
        signs.fill_diagonal_(1)
    return -torch.nn.functional.logsigmoid(signs * logits).sum() / scaled.shape[0]


def exchanged(
    to: list[tuple[torch.Tensor, int]], sources: list[int], group: dist.ProcessGroup | None
) -> list[torch.Tensor]:
    """Send each tensor to a rank of the group and receive one from each source."""
    received = [torch.empty_like(to[0][0]) for _ in sources]
    operations = [dist.P2POp(dist.isend, tensor, group=group, group_peer=peer) for tensor, peer in to]
    operations += [
        dist.P2POp(dist.irecv, tensor, group=group, group_peer=peer)
        for tensor, peer in zip(received, sources, strict=True)
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    return received


def reference(
    image_features: torch.Tensor,
    text_features: torch.Tensor,
    logit_scale: float,
    logit_bias: float = 0.0,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """`image_features`, `text_features`: (b, D), the run's dtype, rows of unit length, others on every rank, b the
    same; row i of both on one rank is a matching pair. `logit_scale`, `logit_bias`: the same on every rank. `group`:
    None for all ranks.

    Returns a tensor without axes in the same dtype, another one on every rank: the sum, over this rank's images and all
    ranks' texts, of -log(sigmoid(s * (logit_scale * image . text + logit_bias))), divided by b. s is 1 for a matching
    pair and -1 for all others.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    scaled = logit_scale * image_features
    loss = block_loss(scaled, text_features, logit_bias, own=True)
    from_right = from_left = text_features
    for _ in range((world_size - 1) // 2):
        from_right, from_left = exchanged([(from_right, left), (from_left, right)], [right, left], group)
        loss = loss + block_loss(scaled, from_right, logit_bias, own=False)
        loss = loss + block_loss(scaled, from_left, logit_bias, own=False)
    if world_size % 2 == 0:
        (from_left,) = exchanged([(from_left, right)], [left], group)
        loss = loss + block_loss(scaled, from_left, logit_bias, own=False)
    return loss


def sizes(case: Case, world_size: int) -> tuple[int, int]:
    return max(1, case["m"] // world_size), max(16, case["n"])


def inputs(case: Case, ctx: RankContext) -> Arguments:
    b, d = sizes(case, ctx.world_size)
    wide, common = torch.float32, ctx.shared()

    def unit(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(x, dim=-1)

    if case.name == "pkb":
        return unit(ctx.randn(b, d)), unit(ctx.randn(b, d)), 10.0, -10.0
    # A third of a feature is its topic's, which some texts on every rank share, a third the pair's, the rest its own.
    # About four texts of each rank are on an image's topic: those are nearly as near as its match.
    topics = unit(common.randn(max(2, b // 4), d, dtype=wide))
    topic = topics[ctx.integers(0, len(topics), b)]
    # On every other rank pairs are easier: more their own, and farther from others of their topic.
    strength = ctx.uniform(1, low=-0.02, high=0.02, dtype=wide) + (0.92, 1.08)[(ctx.rank + common.integer(0, 2)) % 2]
    pair = unit(ctx.randn(b, d, dtype=wide)) * strength
    features = [unit(topic + pair + 0.6 * unit(ctx.randn(b, d, dtype=wide))).to(ctx.dtype) for _ in range(2)]
    # The boundary lies between the two cosines, 0.85 and 0.42, where both kinds of pairs make a loss. It moves, so that
    # each trial has a loss of its own. Eighths and sixteenths are exact in 16 bits: rounded, one bias is wrong for all.
    scale = common.integer(120, 145) / 8
    boundary = float(common.uniform(1, low=0.64, high=0.7, dtype=wide))
    return *features, scale, -round(16 * scale * boundary) / 16


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    b, d = sizes(case, world_size)
    features = b * d * element_bytes
    return Work(
        flops=2 * b * (world_size * b) * d,
        hbm_bytes=2 * features,
        # With multicast the own texts leave once; the others still arrive one by one.
        link_out_bytes=features if world_size > 1 else 0,
        link_in_bytes=(world_size - 1) * features,
    )


PROBLEM = Problem(
    title="Sigmoid contrastive loss with texts passed between neighbours",
    family="data",
    source="OpenCLIP",
    tags=("gemm", "p2p", "loss"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        "default": {"m": 1024, "n": 1024},
        # SigLIP's batch of 32768 pairs, with features of its So400m model.
        "large": {"m": 32768, "n": 1152},
        "odd": {"m": 1031, "n": 517},
        "tiny": {"m": 40, "n": 40},
    },
    tolerance="rounding",
    repair="With independent features, as published, the loss is 10.05 on every rank, 0.035 of it from texts of other "
    "ranks. In `default` pairs are alike and share topics with texts of all ranks, which make most of the loss.",
)
