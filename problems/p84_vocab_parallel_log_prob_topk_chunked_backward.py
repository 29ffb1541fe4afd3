"""Gradient of filtered log-probabilities (82) with respect to the logits, whose vocabulary is sharded across ranks.

Reinforcement learning on language models: the backward pass of the policy's log-probabilities, in chunks.
"""

import math
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from problems import vocabulary
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    grad_output: torch.Tensor,
    tp_group: dist.ProcessGroup | None = None,
    top_k: int | None = None,
    top_p: float = 1.0,
    chunk_size: int = 1,
) -> torch.Tensor:
    """`vocab_parallel_logits`: (batch, tokens, columns), floating point; the vocabulary has ranks * columns entries, of
    which rank r has those from r * columns on. `target`: (batch, tokens) int64, the same on all ranks, each in the
    vocabulary.
    `grad_output`: (batch, tokens), the logits' dtype, the same on all ranks.
    `tp_group`: None for all ranks.
    `top_k`: None or 0 is off; otherwise a logit is kept if it is at least the k-th largest of its token (all that equal
    that one are kept; k above the size of the vocabulary keeps all).
    `top_p`: 1 is off; otherwise, of what top_k has kept, in descending order, an entry is kept if the probability of
    all before it (softmax in float32 over what top_k has kept) is below top_p. Which of equal logits is first is open.
    `chunk_size`: batch * chunk_size tokens (flat, batch-major) are handled at a time, to bound the memory for exchanged
    logits; the result does not depend on it. batch * tokens and batch * chunk_size are multiples of the ranks' number.

    Returns (batch, tokens, columns), float32: the gradient for this rank's columns. With p = softmax over a token's
    kept logits it is (1 - p) * grad_output at the target and -p * grad_output elsewhere, but 0 at all entries that are
    not kept, the target too.
    """
    batch, tokens, columns = vocab_parallel_logits.shape
    rank, ranks = dist.get_rank(tp_group), dist.get_world_size(tp_group)
    step = batch * max(1, chunk_size)
    if batch * tokens % ranks or step % ranks:
        raise ValueError(f"{batch * tokens} tokens, {step} at a time, do not divide evenly over {ranks} ranks")
    wide = torch.promote_types(vocab_parallel_logits.dtype, torch.float32)
    flat = vocab_parallel_logits.reshape(batch * tokens, columns)
    gradient = torch.empty_like(flat, dtype=wide)
    for logits, targets, upstream, out in zip(
        flat.split(step),
        target.reshape(-1).split(step),
        grad_output.reshape(-1).split(step),
        gradient.split(step),
        strict=True,
    ):
        rows = _token_rows(logits, tp_group)
        own_targets, own_upstream = targets.view(ranks, -1, 1)[rank], upstream.view(ranks, -1, 1)[rank]
        own = _gradient(rows, own_targets, own_upstream.to(wide), top_k, top_p)
        pieces = [piece.contiguous() for piece in own.chunk(ranks, dim=-1)]
        dist.all_to_all(list(out.chunk(ranks)), pieces, group=tp_group)
    return gradient.view(batch, tokens, columns)


def _token_rows(logits: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """From (tokens, own columns) to (own tokens, vocabulary): rank r gets the r-th of equal blocks of tokens."""
    pieces = list(logits.chunk(dist.get_world_size(group)))
    received = [torch.empty_like(piece) for piece in pieces]
    dist.all_to_all(received, pieces, group=group)
    return torch.cat(received, dim=-1)


def _gradient(
    rows: torch.Tensor, target: torch.Tensor, upstream: torch.Tensor, top_k: int | None, top_p: float
) -> torch.Tensor:
    """d(log-probability of the target)/d(logits), times `upstream` (rows, 1)."""
    kept = _kept(rows, top_k, top_p)
    wide = rows.to(upstream.dtype)
    if kept is not None:
        wide = wide.masked_fill(~kept, -math.inf)
    gradient = wide.softmax(dim=-1).neg_()
    gradient.scatter_add_(-1, target, torch.ones_like(upstream))
    gradient *= upstream
    return gradient if kept is None else gradient.masked_fill_(~kept, 0.0)


def _by_height(rows: torch.Tensor, kept: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each row's kept logits in descending order, their columns, and the probability of all before each."""
    if kept is None:
        highest, columns = rows.sort(dim=-1, descending=True)
    else:
        most = int(kept.sum(dim=-1).max())  # more than top_k where several equal the k-th largest
        highest, columns = rows.masked_fill(~kept, -math.inf).topk(most, dim=-1)
    share = highest.to(torch.promote_types(rows.dtype, torch.float32)).softmax(dim=-1)
    return highest, columns, share.cumsum(dim=-1) - share


def _kept(rows: torch.Tensor, top_k: int | None, top_p: float) -> torch.Tensor | None:
    """Which logits (rows, vocabulary) pass the filters; None if there are none."""
    kept = None
    if top_k is not None and top_k > 0:
        kept = rows >= rows.topk(min(top_k, rows.shape[-1]), dim=-1).values[:, -1:]
    if top_p < 1:
        _, columns, before = _by_height(rows, kept)
        within = before < top_p
        within[:, 0] = True
        nucleus = torch.zeros_like(rows, dtype=torch.bool).scatter_(-1, columns, within)
        kept = nucleus if kept is None else kept & nucleus
    return kept


def inputs(case: Case, ctx: RankContext) -> Arguments:
    logits, target = vocabulary.logits_and_targets(case, ctx)
    upstream = ctx.stream("upstream").randn(*target.shape)
    return logits, target, upstream, None, *vocabulary.filters(case, ctx), vocabulary.chunk_size(case, ctx.world_size)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    tokens, columns = case["batch"] * vocabulary.sequence(case, world_size), vocabulary.width(case, world_size)
    # A row of gradients in place of a log-probability.
    return replace(
        vocabulary.filtered_work(case, world_size, element_bytes),
        hbm_bytes=tokens * (columns * (element_bytes + max(element_bytes, 4)) + 8 + element_bytes),
    )


def unsure(oracle: torch.Tensor, vocab_parallel_logits: torch.Tensor, *others: Any) -> torch.Tensor:
    batch, tokens, columns = vocab_parallel_logits.shape
    _, _, tp_group, top_k, top_p = others[:5]
    rows = _token_rows(vocab_parallel_logits.flatten(0, 1), tp_group)
    heights, _, before = _by_height(rows, _kept(rows, top_k, 1.0))
    own = vocabulary.open_rows(heights, before, top_p).to(torch.uint8)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(tp_group))]
    dist.all_gather(everyone, own, group=tp_group)
    return torch.cat(everyone).bool().view(batch, tokens, 1).expand(batch, tokens, columns)


PROBLEM = Problem(
    title="Gradient of filtered log-probabilities over a sharded vocabulary, in chunks",
    family="vocab",
    source="NeMo-RL",
    tags=("all_to_all", "loss", "backward"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"batch": 2, "tokens": 8, "vocabulary": 256},
        "default": {"batch": 2, "tokens": 1024, "vocabulary": 32768},
        # Llama 3 vocabulary; two sequences of 2048 tokens, an eighth at a time.
        "large": {"batch": 2, "tokens": 2048, "vocabulary": 128256, "chunk": 256},
        "odd": {"batch": 3, "tokens_per_rank": 11, "vocabulary_per_rank": 37, "chunk_per_rank": 4},
        "tiny": {"batch": 2, "tokens_per_rank": 3, "vocabulary_per_rank": 11, "chunk_per_rank": 2},
    },
    repair=(
        "As published the target's logit dominates: mostly it alone passes the filters and the gradient is 0; and "
        "there are only 16 tokens. By default thousands of tokens keep 1 to 9 entries each, some targets are removed, "
        "and masses keep a distance from top_p."
    ),
    illegal=vocabulary.uneven,
    changing=(0, 1, 2),
    few=True,
    unsure=unsure,
)
