"""Whether collectives were used, on gloo in two real processes."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, sys, torch, torch.distributed as dist
from harness import collectives
assert collectives.count() is not None
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
x, two = torch.ones(4), [torch.empty(4), torch.empty(4)]
world = dist.group.WORLD
grown = {}

def look(name, call):
    before = collectives.count()
    call()
    grown[name] = collectives.count() - before

def own_group():
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=group)
    dist.destroy_process_group(group)

look("nothing", lambda: x + 1)
look("all_reduce", lambda: dist.all_reduce(x))
look("async", lambda: dist.all_reduce(x, async_op=True).wait())
look("all_gather", lambda: dist.all_gather(two, x))
look("reduce_scatter", lambda: dist.reduce_scatter_tensor(torch.empty(2), x))
look("broadcast", lambda: dist.broadcast(x, 0))
look("all_to_all", lambda: dist.all_to_all_single(torch.empty(4), x))
look("barrier", dist.barrier)
look("functional", lambda: torch.ops._c10d_functional.wait_tensor(
    torch.ops._c10d_functional.all_reduce(x, "sum", world.group_name)))
look("of the group", lambda: world.allreduce([x]).wait())
look("of its backend", lambda: world._get_backend(torch.device("cpu")).allreduce([x]).wait())
look("group made and destroyed", own_group)
kept = dist.new_group([0, 1], backend="cpu:gloo")
look("other group", lambda: dist.all_reduce(x, group=kept))
look("its destruction", lambda: dist.destroy_process_group(kept))
look("three", lambda: [dist.all_reduce(x) for _ in range(3)])
dist.distributed_c10d._world.pg_map.clear()
look("groups forgotten", lambda: None)
type(dist.distributed_c10d._world).pg_map = property(lambda self: 1 / 0)
grown["broken"] = collectives.count()
print(json.dumps(grown), flush=True)
os._exit(0)  # what was broken on purpose may abort the interpreter on its way out
"""


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """Case -> by how much the number grew, of both ranks."""
    path = tmp_path_factory.mktemp("store") / "store"
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    ranks = [subprocess.Popen([*command, str(rank), str(path)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_every_collective_counts(grown):
    for rank in grown:
        quiet = {"nothing", "its destruction", "groups forgotten", "broken"}
        assert {name for name, by in rank.items() if name not in quiet and by < 1} == set(), rank
        assert rank["three"] == 3 and rank["all_reduce"] == 1


def test_what_is_no_collective_does_not(grown):
    for rank in grown:
        assert (rank["nothing"], rank["its destruction"], rank["groups forgotten"]) == (0, 0, 0)


def test_broken_books_are_not_known(grown):
    assert [rank["broken"] for rank in grown] == [None, None]
