"""Log-probability of target tokens under top-k and top-p filtered sampling, from logits whose vocabulary is sharded.

Reinforcement learning on language models: what the policy's sampler would have given each token, in tensor parallelism.
"""

import math
from typing import Any

import torch
import torch.distributed as dist

from problems import vocabulary
from problems.spec import Arguments, Case, Problem, RankContext

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reference(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    tp_group: dist.ProcessGroup | None = None,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> torch.Tensor:
    """`vocab_parallel_logits`: (batch, tokens, columns), floating point; the vocabulary has ranks * columns entries, of
    which rank r has those from r * columns on. `target`: (batch, tokens) int64, the same on all ranks, each in the
    vocabulary.
    `tp_group`: None for all ranks.
    `top_k`: None or 0 is off; otherwise a logit is kept if it is at least the k-th largest of its token (all that equal
    that one are kept; k above the size of the vocabulary keeps all).
    `top_p`: 1 is off; otherwise, of what top_k has kept, in descending order, an entry is kept if the probability of
    all before it (softmax in float32 over what top_k has kept) is below top_p. Which of equal logits is first is open.
    batch * tokens is a multiple of the number of ranks.

    Returns (batch, tokens), float32, the same on all ranks: log softmax over the kept logits at the target; minus
    infinity where the target is not kept.
    """
    batch, tokens, columns = vocab_parallel_logits.shape
    ranks = dist.get_world_size(tp_group)
    if batch * tokens % ranks:
        raise ValueError(f"{batch * tokens} tokens do not divide evenly over {ranks} ranks")
    rows = _token_rows(vocab_parallel_logits.reshape(batch * tokens, columns), tp_group)
    own_target = target.reshape(ranks, -1, 1)[dist.get_rank(tp_group)]
    own = _log_probability(rows, own_target, top_k, top_p)
    result = own.new_empty(batch * tokens)
    all_gather(result, own, group=tp_group)
    return result.view(batch, tokens)


def _token_rows(logits: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """From (tokens, own columns) to (own tokens, vocabulary): rank r gets the r-th of equal blocks of tokens."""
    pieces = list(logits.chunk(dist.get_world_size(group)))
    received = [torch.empty_like(piece) for piece in pieces]
    dist.all_to_all(received, pieces, group=group)
    return torch.cat(received, dim=-1)


def _log_probability(rows: torch.Tensor, target: torch.Tensor, top_k: int | None, top_p: float) -> torch.Tensor:
    kept = _kept(rows, top_k, top_p)
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    if kept is not None:
        wide = wide.masked_fill(~kept, -math.inf)
    return (wide.gather(-1, target) - wide.logsumexp(dim=-1, keepdim=True)).squeeze(-1)


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
    return *vocabulary.logits_and_targets(case, ctx), None, *vocabulary.filters(case, ctx)


def unsure(
    oracle: torch.Tensor, vocab_parallel_logits: torch.Tensor, target: torch.Tensor, *options: Any
) -> torch.Tensor:
    tp_group, top_k, top_p = options[:3]
    rows = _token_rows(vocab_parallel_logits.flatten(0, 1), tp_group)
    heights, _, before = _by_height(rows, _kept(rows, top_k, 1.0))
    own = vocabulary.open_rows(heights, before, top_p).to(torch.uint8)
    result = own.new_empty(target.numel())
    all_gather(result, own, group=tp_group)
    return result.view(target.shape).bool()


PROBLEM = Problem(
    title="Filtered log-probabilities over a vocabulary sharded across ranks",
    family="vocab",
    source="NeMo-RL",
    tags=("all_to_all", "all_gather", "loss"),
    reference=reference,
    inputs=inputs,
    work=vocabulary.filtered_work,
    cases={
        "pkb": {"batch": 2, "tokens": 8, "vocabulary": 256},
        "default": {"batch": 2, "tokens": 1024, "vocabulary": 32768},
        # Llama 3 vocabulary; two sequences of 2048 tokens.
        "large": {"batch": 2, "tokens": 2048, "vocabulary": 128256},
        "odd": {"batch": 3, "tokens_per_rank": 11, "vocabulary_per_rank": 37},
        "tiny": {"batch": 2, "tokens_per_rank": 3, "vocabulary_per_rank": 11},
    },
    repair=(
        "As published the target's logit dominates: mostly it alone passes the filters and the result is 0; and "
        "there are only 16 tokens. By default thousands of tokens keep 1 to 9 entries each, some targets are removed, "
        "and masses keep a distance from top_p."
    ),
    illegal=vocabulary.uneven,
    changing=(0, 1),
    few=True,
    unsure=unsure,
)
