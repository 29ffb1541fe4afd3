"""Sigmoid loss of image and text pairs: texts go round the ring, one rank further in each round."""

import torch
import torch.distributed as dist
from torch.nn import functional

from harness import kit


def _passed_on(texts, rank, world):
    """The left neighbour's texts, for ours to the right one."""
    came = torch.empty_like(texts)
    sending = dist.isend(texts, (rank + 1) % world)
    dist.recv(came, (rank - 1) % world)
    sending.wait()
    return came


def solution(image_features, text_features, logit_scale, logit_bias=0.0, group=None):
    rank, world = kit.rank(), kit.world_size()
    dtype = image_features.dtype
    wide = torch.promote_types(dtype, torch.float32)
    images = logit_scale * image_features.to(wide)
    texts = text_features.contiguous()
    loss = torch.zeros((), dtype=wide)
    for distance in range(world):
        if distance > 0:
            texts = _passed_on(texts, rank, world)
        logits = images @ texts.to(wide).T + logit_bias
        if distance == 0:  # matching pairs
            logits.diagonal().neg_()
        loss += functional.softplus(logits).sum()
    return (loss / len(images)).to(dtype)
