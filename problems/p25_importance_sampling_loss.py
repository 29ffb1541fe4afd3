"""Policy-gradient loss with importance ratios over a large vocabulary, and metrics over all ranks' tokens.

Reinforcement-learning post-training: tokens were sampled by an older policy; their probabilities under the present one
come from the output layer. Each rank has a share of the tokens.
"""

import math

import torch
import torch.distributed as dist
from torch.nn import functional

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    ignore_index: int = -100,
) -> tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Only values are asked for, no gradients.

    hidden_states: (tokens, width), this rank's.
    weight: (vocabulary, width), the output layer, the same on all ranks (in case `pkb` each rank has its own).
    labels: int64 (tokens,), in [0, vocabulary) or ignore_index. Ranks have very different numbers of valid tokens, one
        may have none.
    old_logprobs, advantages: (tokens,), of the dtype of hidden_states like all results.

    Returns the loss over all ranks' valid tokens, (); None; log-probabilities of the labels, (tokens,), and
    policy-gradient terms, (tokens,), of this rank's tokens, both 0 where ignored; and metrics over all ranks' valid
    tokens, (5,): mean, least and largest ratio, mean of ratio - delta - 1, mean cross-entropy. Loss and metrics are the
    same on all ranks.
    """
    wide = torch.promote_types(hidden_states.dtype, torch.float32)
    logits = functional.linear(hidden_states, weight).to(wide)
    cross_entropy = functional.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="none")
    valid = labels != ignore_index
    delta = torch.where(valid, -cross_entropy - old_logprobs, 0.0).clamp(-20.0, 20.0)
    ratio = delta.exp()
    policy_gradient = torch.where(valid, -ratio * advantages, 0.0)

    ratios = torch.where(valid, ratio, 0.0)
    # Where ignored, ratio - delta - 1 is 0.
    summands = (valid.to(wide), policy_gradient, ratios, ratio - delta - 1, cross_entropy)
    sums = torch.stack([summand.sum() for summand in summands])
    least, largest = torch.where(valid, ratio, torch.inf).amin(), ratios.amax()
    extremes = torch.stack((least, -largest))
    dist.all_reduce(sums)
    dist.all_reduce(extremes, op=dist.ReduceOp.MIN)
    loss, mean_ratio, divergence, entropy = sums[1:] / sums[0].clamp_min(1)
    metrics = torch.stack((mean_ratio, extremes[0], -extremes[1], divergence, entropy))

    dtype = hidden_states.dtype
    return loss.to(dtype), None, -cross_entropy.to(dtype), policy_gradient.to(dtype), metrics.to(dtype)


def valid_tokens(case: Case, world_size: int) -> list[int]:
    """Of each rank, in descending order; which rank has how many is drawn. From three ranks on, the last has none."""
    tokens = case["tokens"]
    if case.name == "pkb":
        return [tokens] * world_size
    shares = [0.95 - 0.6 * i / max(1, world_size - 1) for i in range(world_size)]
    return [int(tokens * share) for share in (shares if world_size < 3 else [*shares[:-1], 0.0])]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    tokens, width, vocabulary = case["tokens"], case["width"], case["vocabulary"]
    if case.name == "pkb":
        hidden, weight = ctx.randn(tokens, width), ctx.randn(vocabulary, width)
        return hidden, weight, ctx.integers(0, vocabulary, tokens), ctx.randn(tokens), ctx.randn(tokens), -100
    common = ctx.shared()
    weight = (common.randn(vocabulary, width, dtype=torch.float32) * width**-0.5).to(ctx.dtype)
    labels = ctx.integers(0, vocabulary, tokens)
    # The model leans towards the label, more or less: log-probabilities from about log(1/vocabulary) to about 0.
    lean = ctx.uniform(tokens, 1, low=0.4, high=1.4, dtype=torch.float32) * math.log(vocabulary)
    noise = ctx.randn(tokens, width, dtype=torch.float32)
    hidden = (noise + lean * weight[labels].float()).to(ctx.dtype)
    # The old policy was like the present one; how much so depends on the rank (of asynchronous sampling).
    drift, worth = ctx.uniform(2, dtype=torch.float32).tolist()
    change = ctx.randn(tokens, dtype=torch.float32) * 0.3 + 0.8 * drift - 0.4
    old = log_probabilities(hidden, weight, labels) + change
    # On average not zero: the loss must not be a sum that cancels.
    advantages = ctx.randn(tokens, dtype=torch.float32) + 0.5 + worth
    place = int(common.permutation(ctx.world_size)[ctx.rank])
    ignored = ctx.permutation(tokens)[valid_tokens(case, ctx.world_size)[place] :]
    labels[ignored] = -100
    return hidden, weight, labels, old.clamp_max(0).to(ctx.dtype), advantages.to(ctx.dtype), -100


def log_probabilities(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    found = []
    for rows, own in zip(hidden.split(4096), labels.split(4096), strict=True):
        logits = rows.float() @ weight.float().T
        found.append(functional.log_softmax(logits, dim=-1).gather(1, own[:, None]).squeeze(1))
    return torch.cat(found)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    tokens, width, vocabulary = case["tokens"], case["width"], case["vocabulary"]
    counts = valid_tokens(case, world_size)
    # What an ignored token says does not count. Between calls up to 16 more labels may be ignored.
    slack = 0 if case.name == "pkb" else 16
    most, average = max(0, counts[0] - slack), max(0.0, sum(counts) / world_size - slack)
    # One output layer of all ranks: they could share out the tokens, or the vocabulary.
    matrix = vocabulary * width / (1 if case.name == "pkb" else world_size)
    # Five sums, a minimum and a maximum.
    link = 7 * element_bytes if world_size > 1 else 0
    return Work(
        flops=2 * average * width * vocabulary,
        hbm_bytes=(matrix + most * (width + 2) + 2 * tokens) * element_bytes + 8 * tokens,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Importance-sampling policy-gradient loss with global metrics",
    family="data",
    source="NeMo-RL",
    tags=("loss", "gemm", "all_reduce", "uneven"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"tokens": 1024, "width": 1024, "vocabulary": 32000},
        "default": {"tokens": 1024, "width": 1024, "vocabulary": 32000},
        # The output layer of Llama 3 8B, 4096 tokens on each rank.
        "large": {"tokens": 4096, "width": 4096, "vocabulary": 128256},
        "odd": {"tokens": 257, "width": 131, "vocabulary": 1009},
        "tiny": {"tokens": 24, "width": 16, "vocabulary": 50},
    },
    tolerance="rounding",
    repair=(
        "As published logits are so large that every ratio is clamped to 2e-9: loss and metrics are 0 or 19 whatever "
        "the others hold, and no label is ignored. By default the ranks share one output layer of ordinary scale, old "
        "log-probabilities are close to the new ones, and a varying share of labels is ignored, on one rank all."
    ),
    changing=(0, 1, 2, 3, 4),
)
