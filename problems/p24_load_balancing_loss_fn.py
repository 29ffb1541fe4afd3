"""Auxiliary loss that keeps the experts of a mixture-of-experts model evenly busy, averaged over ranks.

Mixtral and Switch style (Hugging Face Transformers, VeOmni): for each expert, the share of tokens that choose it times
the mean probability that it gets. Every rank sees other tokens.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(
    gate_logits: torch.Tensor | tuple[torch.Tensor, ...],
    num_experts: int,
    top_k: int = 2,
    attention_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the loss averaged over ranks, a 0-dim tensor of float32 (float64 for float64 logits), the same on all.

    gate_logits: this rank's router logits, (batch * sequence, num_experts) for each layer, in a tuple; or one tensor.
        All layers count as one long list of tokens. In bfloat16 runs too, those in a tuple are float32. Only the set of
        the top_k experts of a token matters, not their order.
    attention_mask: int64 (batch, sequence) of 0 and 1, or None: the tokens that count, the same in every layer. Other
        ranks have other masks, and each rank divides by its own number of tokens.
    """
    logits = gate_logits if isinstance(gate_logits, torch.Tensor) else torch.cat(gate_logits)
    probabilities = torch.softmax(logits, dim=-1)
    wide = torch.promote_types(logits.dtype, torch.float32)
    chosen = probabilities.topk(top_k, dim=-1).indices
    choices = torch.zeros_like(probabilities, dtype=wide).scatter_(1, chosen, 1.0)
    if attention_mask is None:
        shares, means = choices.mean(dim=0), probabilities.mean(dim=0)
    else:
        counts = attention_mask.reshape(-1).to(wide)
        counts = counts.repeat(logits.shape[0] // counts.shape[0])
        tokens = counts.sum()
        shares, means = counts @ choices / tokens, counts @ probabilities.to(wide) / tokens
    loss = num_experts * (shares * means).sum()
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def inputs(case: Case, ctx: RankContext) -> Arguments:
    batch, sequence, experts, top_k = case["batch"], case["sequence"], case["experts"], case["top_k"]
    if case.name == "pkb":
        return ctx.randn(batch * sequence, experts), experts, top_k, None
    common = ctx.shared()
    layers = []
    for _ in range(case["layers"]):
        # Experts are popular everywhere, and more so on some ranks.
        bias = common.randn(experts, dtype=ctx.wide) + 0.7 * ctx.randn(experts, dtype=ctx.wide)
        # Routers keep float32: in bfloat16 one token in a hundred has a tie between the last expert that it chooses and
        # the next.
        layers.append(ctx.randn(batch * sequence, experts, dtype=ctx.wide) + bias)
    lengths = ctx.integers(sequence // 8, sequence + 1, batch, 1)
    mask = (torch.arange(sequence, device=ctx.device) < lengths).long()
    return tuple(layers), experts, top_k, mask


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    tokens, layers = case["batch"] * case["sequence"], 1 if case.name == "pkb" else case["layers"]
    # Sequences are at least an eighth as long as they could be; what is masked need not be read.
    read = tokens if case.name == "pkb" else case["batch"] * (case["sequence"] // 8)
    mask = 0 if case.name == "pkb" else tokens * 8
    link = element_bytes if world_size > 1 else 0
    return Work(
        # Exponential, sum, quotient, comparison and mean of each logit.
        flops=5 * layers * read * case["experts"],
        hbm_bytes=layers * read * case["experts"] * element_bytes + mask,
        link_out_bytes=link,
        link_in_bytes=link,
    )


PROBLEM = Problem(
    title="Mixture-of-experts load-balancing loss averaged over ranks",
    family="expert",
    source="Hugging Face Transformers",
    tags=("loss", "moe", "all_reduce"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"batch": 1, "sequence": 1024, "experts": 8, "top_k": 2},
        "default": {"layers": 4, "batch": 8, "sequence": 128, "experts": 8, "top_k": 2},
        # Qwen3-30B-A3B: 48 layers of 128 experts, 8 of them for each token; 8192 tokens on each rank.
        "large": {"layers": 48, "batch": 4, "sequence": 2048, "experts": 128, "top_k": 8},
        "odd": {"layers": 3, "batch": 7, "sequence": 131, "experts": 11, "top_k": 3},
        "tiny": {"layers": 2, "batch": 3, "sequence": 17, "experts": 5, "top_k": 2},
    },
    tolerance="rounding",
    repair=(
        "As published all experts are alike, so the answer is 2.00 whatever the logits; neither the mask nor several "
        "layers occur. By default experts differ in popularity, by layer and rank, and masked tokens, at the ends of "
        "sequences of random length, do not count. Logits are float32, as routers keep them: in bfloat16 many choices "
        "are ties."
    ),
    changing=(0, 3),
)
