"""Cross-entropy of each token over a vocabulary whose columns are sharded across ranks.

The loss of a tensor-parallel language model (Megatron style): the full logits are never gathered.
"""

import torch
import torch.distributed as dist

from problems import vocabulary
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    vocab_parallel_logits: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """`vocab_parallel_logits`: (batch, tokens, columns), floating point; the vocabulary has ranks * columns entries, of
    which rank r has those from r * columns on. May be overwritten. `target`: (batch, tokens) int64, the same on all
    ranks, each in the vocabulary. `group`: None for all ranks.

    Returns (batch, tokens) in the logits' dtype, the same on all ranks: -log softmax(logits)[target].
    Logits may be beyond 100, where exp overflows: subtract the largest one first.
    """
    columns = vocab_parallel_logits.shape[-1]
    highest = vocab_parallel_logits.amax(dim=-1)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    shifted = vocab_parallel_logits - highest.unsqueeze(-1)

    column = target - dist.get_rank(group) * columns
    owned = (column >= 0) & (column < columns)
    predicted = shifted.gather(-1, column.clamp(0, columns - 1).unsqueeze(-1)).squeeze(-1)
    predicted = predicted.masked_fill(~owned, 0.0)
    dist.all_reduce(predicted, group=group)

    total = shifted.exp_().sum(dim=-1)
    dist.all_reduce(total, group=group)
    return total.log() - predicted


def inputs(case: Case, ctx: RankContext) -> Arguments:
    shape, columns = (case["batch"], vocabulary.sequence(case, ctx.world_size)), vocabulary.width(case, ctx.world_size)
    entries, common = columns * ctx.world_size, ctx.shared()
    logits = ctx.randn(*shape, columns, dtype=torch.float32)
    target = common.integers(0, entries, *shape)
    if case.name == "pkb":
        return logits.to(ctx.dtype), target, None
    # One target in eight is the first or the last of a shard.
    edge = common.integers(0, ctx.world_size, *shape) * columns + common.integers(0, 2, *shape) * (columns - 1)
    target = torch.where(_chance(common, shape, 1 / 8), edge, target)
    # Rows from nearly flat to peaked. One entry stands out: the target, where the model is right, or another.
    logits *= common.uniform(*shape, 1, low=0.3, high=2.0, dtype=torch.float32)
    favourite = torch.where(_chance(common, shape, 1 / 2), target, common.integers(0, entries, *shape))
    column = favourite - ctx.rank * columns
    owned = ((column >= 0) & (column < columns)).nonzero(as_tuple=True)
    logits[*owned, column[owned]] += common.uniform(*shape, high=12.0, dtype=torch.float32)[owned]
    # One row in eight has an offset with which exp overflows.
    offset = common.uniform(*shape, low=90.0, high=120.0, dtype=torch.float32)
    logits += (offset * _chance(common, shape, 1 / 8)).unsqueeze(-1)
    return logits.to(ctx.dtype), target, None


def _chance(common: RankContext, shape: tuple[int, int], share: float) -> torch.Tensor:
    return common.uniform(*shape, dtype=torch.float32) < share


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    tokens, columns = case["batch"] * vocabulary.sequence(case, world_size), vocabulary.width(case, world_size)
    # Each rank has a term of every token's sum. If the switch adds, one number per token leaves and one arrives.
    link = tokens * element_bytes if world_size > 1 else 0
    return Work(
        # Shift, exp, add.
        flops=3 * tokens * columns,
        hbm_bytes=tokens * (columns * element_bytes + 8 + element_bytes),
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Cross-entropy over a vocabulary sharded across ranks",
    family="vocab",
    source="Megatron-LM",
    tags=("all_reduce", "loss"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"batch": 8, "tokens": 1024, "vocabulary": 512},
        "default": {"batch": 8, "tokens": 1024, "vocabulary": 512},
        # Llama 3 vocabulary, 8192 tokens.
        "large": {"batch": 2, "tokens": 4096, "vocabulary": 128256},
        "odd": {"batch": 3, "tokens_per_rank": 67, "vocabulary_per_rank": 129},
        "tiny": {"batch": 2, "tokens_per_rank": 3, "vocabulary_per_rank": 11},
    },
    repair=(
        "Standard normal logits: the sum of exponentials is nearly the same for each token, and subtracting the "
        "maximum can be left out. Default rows are flat to peaked, some are offset so far that exp overflows, and "
        "targets are random with many at the edges of shards."
    ),
    illegal=vocabulary.uneven,
    changing=(0, 1),
    scratch=(0,),
)
