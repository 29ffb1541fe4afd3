"""Search of the k nearest neighbours of each rank's queries in all ranks' training features, by cosine similarity.

The k-NN evaluation of DINOv2: training features and labels are sharded, and so are the test images.
"""

import torch
import torch.distributed as dist

from problems.graphs import clamp
from problems.spec import Arguments, Case, Problem, RankContext, Work

# torch 2.13 renamed the call and warns on every use of the old name; earlier versions know only that.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reference(
    test_features_rank: torch.Tensor,
    train_features_rank_T: torch.Tensor,
    train_labels_rank: torch.Tensor,
    max_k: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """test_features_rank (Q, D), any floating-point dtype: this rank's queries, rows of length one (about).
    train_features_rank_T (D, S), same dtype: this rank's training features, transposed, columns of length one.
    train_labels_rank (1, S), int64: their labels, 0 to 999.
    max_k: k, at most S. All shapes and k are the same on every rank; all values differ.

    Returns for this rank's queries, among the training features of all ranks, the k largest similarities (dot products,
    rounded to the dtype), in descending order, (Q, k) in the dtype, and their labels, (Q, k) int64. Where similarities
    are so near that rounding decides, the order of their labels is open.
    """
    world_size = dist.get_world_size(group)
    count, width = test_features_rank.shape
    if max_k > train_features_rank_T.shape[1]:
        raise ValueError(f"max_k={max_k} exceeds the {train_features_rank_T.shape[1]} features of a shard")
    queries = test_features_rank.new_empty(world_size * count, width)
    all_gather(queries, test_features_rank.contiguous(), group=group)
    nearest, column = (queries @ train_features_rank_T).topk(max_k, dim=1)
    labels = train_labels_rank[0][column]

    # Every rank's candidates for this rank's queries.
    candidates, candidate_labels = torch.empty_like(nearest), torch.empty_like(labels)
    dist.all_to_all_single(candidates, nearest, group=group)
    dist.all_to_all_single(candidate_labels, labels, group=group)
    candidates, candidate_labels = (
        part.view(world_size, count, max_k).transpose(0, 1).reshape(count, -1)
        for part in (candidates, candidate_labels)
    )
    similarity, place = candidates.topk(max_k, dim=1)
    return similarity, candidate_labels.gather(1, place)


def sizes(case: Case, world_size: int) -> tuple[int, int, int, int]:
    """Queries, features, training features of a rank, k."""
    if "m" in case.sizes:
        m, n = case["m"], case["n"]
        width = 1024 if n >= 8192 else 768 if n >= 4096 else 384
        shard = clamp(16 * n // world_size, 1024, 16384)
        return clamp(m // 64, 32, 256), width, shard, min(case.sizes.get("k", 200), shard)
    return case["queries"], case["features"], case["shard"], case["k"]


def unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=1, keepdim=True)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    world_size, rank = ctx.world_size, ctx.rank
    count, width, shard, k = sizes(case, world_size)

    def queries(of: RankContext) -> torch.Tensor:
        return unit(of.randn(count, width, dtype=torch.float32)).to(ctx.dtype)

    own = queries(ctx)
    train = unit(ctx.randn(shard, width, dtype=torch.float32))
    labels = ctx.integers(0, 1000, 1, shard)
    if case.name != "pkb":
        # Each query has k + 2 neighbours anywhere in the shards, at similarities further apart than rounding: one that
        # is nearly itself, so that a row has no common scale, and others half as near.
        asked = torch.cat([queries(ctx.of_rank(r)) for r in range(world_size)]).float()
        slot = ctx.shared().permutation(world_size * shard)[: len(asked) * (k + 2)]
        here = (slot // shard == rank).nonzero()[:, 0]
        query = unit(asked[here // (k + 2)])
        place = here % (k + 2)
        others = 0.49 - 0.17 * (place - 1 + ctx.uniform(len(here), high=0.2, dtype=torch.float32)) / (k + 1)
        similarity = torch.where(place == 0, 0.96, others)[:, None]
        noise = ctx.randn(len(here), width, dtype=torch.float32)
        across = unit(noise - (noise * query).sum(1, keepdim=True) * query)
        train[slot[here] % shard] = similarity * query + (1 - similarity.square()).sqrt() * across
    return own, train.T.contiguous().to(ctx.dtype), labels, k, None


def unsure(
    oracle: tuple[torch.Tensor, torch.Tensor],
    test_features_rank: torch.Tensor,
    train_features_rank_T: torch.Tensor,
    train_labels_rank: torch.Tensor,
    max_k: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[None, torch.Tensor]:
    """Labels whose similarity is nearer to a neighbour's than roundings of both may be."""
    dtype = test_features_rank.dtype
    wide = torch.promote_types(dtype, torch.float32)
    test, train = test_features_rank.to(wide), train_features_rank_T.to(wide)
    further = min(max_k + 1, train.shape[1])
    similarity, _ = reference(test, train, train_labels_rank, further, group)
    # One step of the dtype, and float32 sums in any order.
    slack = similarity.abs() * torch.finfo(dtype).eps + 16 * torch.finfo(wide).eps
    near = (similarity[:, :-1] - similarity[:, 1:]) <= slack[:, :-1]
    # With k as large as a shard the first that is left out is not known.
    open_end = near.new_ones(len(near), max_k + 1 - further)
    after = torch.cat([near, open_end], 1)[:, :max_k]
    before = torch.cat([near.new_zeros(len(near), 1), near], 1)[:, :max_k]
    return None, before | after


def illegal(case: Case, world_size: int) -> str | None:
    count, _, shard, k = sizes(case, world_size)
    if case.name != "pkb" and count * (k + 2) > shard:
        return f"{shard} training features on a rank have no room for {k + 2} neighbours of {count} queries"
    return None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    count, width, shard, k = sizes(case, world_size)
    # Queries must meet all training features: those of the fewer travel, with multicast once.
    travelling = min(count, shard) * width * element_bytes
    return Work(
        flops=2 * world_size * count * width * shard,
        hbm_bytes=(width * shard + count * width) * element_bytes + count * k * (element_bytes + 8),
        link_out_bytes=travelling if world_size > 1 else 0,
        link_in_bytes=(world_size - 1) * travelling,
    )


PROBLEM = Problem(
    title="Find the k nearest of all ranks' training features for each rank's queries",
    family="data",
    source="DINOv2",
    tags=("all_gather", "all_to_all", "gemm", "top_k", "knn"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024},
        # k = 20 is what DINO's accuracies are reported for; 200 similarities of 16 bits cannot be told apart.
        "default": {"m": 1024, "n": 1024, "k": 20},
        # ImageNet-1k (1,281,167 training images) on 8 ranks, ViT-L/14 features, a batch of 256 test images.
        "large": {"queries": 256, "features": 1024, "shard": 160146, "k": 20},
        "odd": {"queries": 13, "features": 389, "shard": 331, "k": 17},
        "tiny": {"queries": 4, "features": 96, "shard": 37, "k": 5},
    },
    tolerance="rounding",
    illegal=illegal,
    unsure=unsure,
    changing=(0, 1, 2),
    few=True,
    repair="As published the 200 largest of random similarities take some 60 values in 16 bits: rounding decides which "
    "labels come where, so few of them can be judged. In `default` each query has 20 neighbours that are told apart, "
    "spread over all ranks.",
)
