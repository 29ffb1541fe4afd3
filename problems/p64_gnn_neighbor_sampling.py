"""Neighbour sampling over several hops in a graph that is divided among the ranks by node.

Each rank grows its own mini-batch from its own seeds. For every hop it asks the owners of its frontier for some
neighbours of each node, and numbers the nodes it has met in the order of their first appearance. (PyTorch Geometric's
distributed sampler.)
"""

import torch
import torch.distributed as dist

from problems.graphs import clamp, degrees, hot_rows, id_bytes, owners, round_up
from problems.spec import Arguments, Case, Problem, RankContext, Work


def runs(starts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """starts[0], starts[0] + 1, ... (counts[0] of them), then the same for 1, 2, ..."""
    total, ends = int(counts.sum()), counts.cumsum(0)
    first = (starts - ends + counts).repeat_interleave(counts, output_size=total)
    return first + torch.arange(total, device=counts.device)


def exchanged(
    tensor: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    output = tensor.new_empty(sum(received), *tensor.shape[1:])
    dist.all_to_all_single(output, tensor.contiguous(), received, sent, group=group)
    return output


def sample(
    frontier: torch.Tensor,
    fanout: int,
    row_ptr: torch.Tensor,
    col: torch.Tensor,
    node_to_rank: torch.Tensor,
    group: dist.ProcessGroup | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Neighbours of each frontier node, in its order; their positions in the owner's `col`; how many each node has."""
    world_size = dist.get_world_size(group)
    owner = node_to_rank[frontier]
    order = owner.argsort(stable=True)
    asked = owner.bincount(minlength=world_size)
    wanted = torch.empty_like(asked)
    dist.all_to_all_single(wanted, asked, group=group)
    asked_of, wanted_by = asked.tolist(), wanted.tolist()

    # Answer what the others ask.
    nodes = exchanged(frontier[order], asked_of, wanted_by, group)
    start, count = row_ptr[nodes], row_ptr[nodes + 1] - row_ptr[nodes]
    if fanout >= 0:
        count = count.clamp_max(fanout)
    edge = runs(start, count)
    replies = torch.stack([col[edge], edge], dim=1)

    got = exchanged(count, wanted_by, asked_of, group)
    totals = torch.stack([part.sum() for part in (*count.split(wanted_by), *got.split(asked_of))]).tolist()
    replies = exchanged(replies, totals[:world_size], totals[world_size:], group)

    # Replies come by owner: back into the frontier's order.
    back = order.argsort()
    picked = replies[runs((got.cumsum(0) - got)[back], got[back])]
    return picked[:, 0], picked[:, 1], got[back]


def distinct(nodes: torch.Tensor) -> torch.Tensor:
    """Each value once, in the order of first appearance."""
    values, inverse = nodes.unique(return_inverse=True)
    first = torch.full_like(values, len(nodes))
    first.scatter_reduce_(0, inverse, torch.arange(len(nodes), device=nodes.device), "amin")
    return nodes[first.sort().values]


def reference(
    seed_nodes: torch.Tensor,
    fanouts: list[int],
    local_adj_row_ptr: torch.Tensor,
    local_adj_col: torch.Tensor,
    node_to_rank: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    replace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """All tensors are int64; n is the number of nodes of the whole graph.

    seed_nodes (s,): this rank's seeds, distinct node ids, owned by any rank. Differ by rank.
    fanouts: neighbours for each node, one number per hop; negative means all. The same on every rank.
    local_adj_row_ptr (n + 1,), local_adj_col (edges stored here,): this rank's rows of the graph in CSR form. The
        neighbours of node v are local_adj_col[row_ptr[v] : row_ptr[v + 1]], as stored: in no order, some repeated.
        A rank must hold the rows of the nodes it owns. Rows of other nodes may be empty here, which says nothing about
        their neighbours.
    node_to_rank (n,): the owner of each node, the same on every rank.
    replace: ignored. "Sampling" takes the first min(fanout, degree) neighbours as stored.

    Each frontier node (the seeds at first, then the nodes first met in the last hop) is answered by its owner.
    Returns (node, row, col, edge), whose lengths depend on the rank:
    node: all distinct nodes met, in the order of first appearance (seeds, then hop by hop, frontier node by frontier
        node, neighbours as stored);
    row, col, edge: for each sampled edge, in that order, the positions in `node` of the neighbour and of the frontier
        node, and the edge's position in the owner's local_adj_col.
    """
    node, frontier, begin = seed_nodes, seed_nodes, 0
    neighbours, destinations, edges = [], [], []
    # Even with an empty frontier a rank answers the others.
    for fanout in fanouts:
        neighbour, edge, count = sample(frontier, fanout, local_adj_row_ptr, local_adj_col, node_to_rank, group)
        positions = torch.arange(begin, begin + len(frontier), device=node.device)
        neighbours.append(neighbour)
        destinations.append(positions.repeat_interleave(count))
        edges.append(edge)
        begin = len(node)
        node = distinct(torch.cat([node, neighbour]))
        frontier = node[begin:]
    ascending, position = node.sort()
    row = position[torch.searchsorted(ascending, torch.cat(neighbours))]
    return node, row, torch.cat(destinations), torch.cat(edges)


def sizes(case: Case, world_size: int) -> tuple[int, int]:
    """Nodes of the graph, seeds of a rank."""
    if "m" in case.sizes:
        nodes, seeds = clamp(case["m"], 10000, 100000), clamp(case["n"] // world_size, 512, 2048)
    else:
        nodes, seeds = case["nodes"], case["seeds"]
    return round_up(nodes, world_size), seeds


def fanouts_of(case: Case) -> list[int]:
    return [case[f"fanout_{hop}"] for hop in (1, 2, 3) if f"fanout_{hop}" in case.sizes]


def inputs(case: Case, ctx: RankContext) -> Arguments:
    world_size, rank, device = ctx.world_size, ctx.rank, ctx.device
    nodes, seeds = sizes(case, world_size)
    fanouts = fanouts_of(case)
    if case.name == "pkb":
        # As published: the whole graph on every rank, node v beside v + 1 to v + 16, the same in every trial.
        node = torch.arange(nodes, device=device)
        near = (node[:, None] + torch.arange(1, 17, device=device)) % nodes
        own = (rank * seeds + torch.arange(seeds, device=device)) % nodes
        return own, fanouts, 16 * torch.arange(nodes + 1, device=device), near.flatten(), node % world_size, None, False
    common = ctx.shared()
    degree, owner = degrees(common, nodes, case["mean_degree"]), owners(common, nodes)
    # The ranks share out shuffled training nodes. Half of a rank's seeds are others' nodes with enough neighbours, so
    # that `work` can count on them.
    shared_out = common.permutation(nodes)[: world_size * seeds].view(world_size, seeds)
    if world_size > 1:
        sure = shared_out[:, : seeds // 2]
        distance = common.integers(1, world_size, world_size, seeds // 2)
        owner[sure] = (torch.arange(world_size, device=device)[:, None] + distance) % world_size
        degree[sure] = degree[sure].clamp_min(fanouts[0])
    stored = torch.where(owner == rank, degree, 0)
    row_ptr = torch.nn.functional.pad(stored.cumsum(0), (1, 0))
    col = common.permutation(nodes)[hot_rows(ctx, common, nodes, int(row_ptr[-1]))]
    return shared_out[rank][ctx.permutation(seeds)], fanouts, row_ptr, col, owner, None, False


def illegal(case: Case, world_size: int) -> str | None:
    nodes, seeds = sizes(case, world_size)
    if case.name != "pkb" and nodes < world_size * seeds:
        return f"nodes={nodes} are too few for {seeds} seeds on each of {world_size} ranks"
    return None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    nodes, seeds = sizes(case, world_size)
    first = fanouts_of(case)[0]
    if case.name == "pkb":
        return Work(hbm_bytes=8 * (2 * seeds + 4 * seeds * first))
    # Only the first hop's neighbours of the seeds that are surely others' are certain. They are asked for once over all
    # ranks, so what arrives on average leaves on average. An id needs no more bytes than tell the nodes apart.
    edges = seeds // 2 * first if world_size > 1 else 0
    link = edges * id_bytes(nodes)
    # Seeds in; an edge is read, and written as neighbour, destination and position.
    return Work(hbm_bytes=8 * (2 * seeds + 4 * edges), link_out_bytes=link, link_in_bytes=link)


PROBLEM = Problem(
    title="Sample neighbours over several hops in a graph divided by node",
    family="graph",
    source="PyTorch Geometric",
    tags=("all_to_all", "uneven", "gnn", "sampling"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "fanout_1": 10, "fanout_2": 5},
        "default": {"m": 1024, "n": 1024, "mean_degree": 16, "fanout_1": 10, "fanout_2": 5},
        # As large as ogbn-products (2.4 million nodes of 50 neighbours), with the usual fanouts of 15, 10 and 5.
        "large": {
            "nodes": 2449029,
            "seeds": 8192,
            "mean_degree": 50,
            "fanout_1": 15,
            "fanout_2": 10,
            "fanout_3": 5,
        },
        # The last hop takes all neighbours.
        "odd": {"nodes": 3001, "seeds": 67, "mean_degree": 7, "fanout_1": 7, "fanout_2": 3, "fanout_3": -1},
        "tiny": {"nodes": 211, "seeds": 13, "mean_degree": 5, "fanout_1": 4, "fanout_2": 3},
    },
    tolerance="exact",
    illegal=illegal,
    # Any node may be a neighbour; seeds must stay distinct.
    changing=(3,),
    repair="As published every rank holds the whole graph, a ring that is the same in every trial: nothing need be "
    "sent and the answer has a closed form. `default` draws a power-law graph with repeated neighbours and uneven "
    "owners, and each rank stores only the rows of its own nodes.",
)
