"""Ranks that are threads of this process: what a problem's reference returns when its collectives add in another order,
or when payloads are changed on their way. A stand-in for `torch.distributed` in the problem's module; what it lacks
fails the test by name."""

import contextlib
import importlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from problems.catalogue import Entry
from problems.spec import Arguments, Problem, Subgroups
from tests.orders import Parts, in_order, ring

WAIT_S = 60.0
Add = Callable[[Parts], torch.Tensor]


@dataclass(frozen=True)
class Wire:
    """What the others receive of a payload; what a rank keeps for itself does not pass. `change(payload, sender, own)`:
    `own` is what the receiver sent itself at that place, or None."""

    change: Callable[[torch.Tensor, int, torch.Tensor | None], torch.Tensor]
    raw: bool = False
    """Bytes (uint8) pass as well as real numbers."""


untouched = Wire(lambda payload, sender, own: payload)


class Threads:
    """Stands for `torch.distributed`."""

    ReduceOp = dist.ReduceOp
    ProcessGroup = dist.ProcessGroup

    def __init__(self, world_size: int, add: Add = ring, wire: Wire = untouched) -> None:
        self._world, self._add, self._wire = tuple(range(world_size)), add, wire
        self._lock, self._local = threading.Lock(), threading.local()
        self._barriers: dict[tuple[int, ...], threading.Barrier] = {}
        self._slots: dict[tuple[int, ...], dict[int, Any]] = {}
        self._mail: dict[tuple[int, int, int], queue.Queue[torch.Tensor]] = {}
        self.passed = 0
        """Payloads that the wire could change."""
        self.group = SimpleNamespace(WORLD=self._world)
        self.failed = False

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, rank: int, reference: Callable[..., Any], arguments: Arguments) -> Any:
        self._local.rank = rank
        own = [self._materialised(argument, rank) for argument in arguments]
        try:
            with torch.no_grad():
                return reference(*own)
        except BaseException:
            self.failed = True
            with self._lock:
                for barrier in self._barriers.values():
                    barrier.abort()
            raise

    def _materialised(self, value: Any, rank: int) -> Any:
        if isinstance(value, Subgroups):
            return next(own for own in value.sets if rank in own)
        return value

    def _ranks(self, group: Any) -> tuple[int, ...]:
        return self._world if group is None else tuple(group)

    def _wait(self, ranks: tuple[int, ...]) -> None:
        with self._lock:
            barrier = self._barriers.setdefault(ranks, threading.Barrier(len(ranks), timeout=WAIT_S))
        if self.failed:
            barrier.abort()
        barrier.wait()

    def _swap(self, payloads: Parts, group: Any) -> list[Parts]:
        """All payloads of the group's ranks as this rank receives them: `[sender in the group][index]`."""
        ranks, me = self._ranks(group), self._local.rank
        with self._lock:
            slots = self._slots.setdefault(ranks, {})
        slots[me] = [payload.detach().clone() for payload in payloads]
        self._wait(ranks)
        received = [slots[rank] for rank in ranks]
        self._wait(ranks)
        kept = received[ranks.index(me)]
        return [
            sent
            if rank == me
            else [self._pass(p, rank, kept[i] if i < len(kept) else None) for i, p in enumerate(sent)]
            for rank, sent in zip(ranks, received, strict=True)
        ]

    def _pass(self, payload: torch.Tensor, sender: int, own: torch.Tensor | None) -> torch.Tensor:
        own = own if own is not None and own.shape == payload.shape else None
        if payload.numel() == 0:
            return payload
        if payload.is_complex():
            parts = torch.view_as_real(payload)
            return torch.view_as_complex(
                self._pass(parts, sender, None if own is None else torch.view_as_real(own)).contiguous()
            )
        if payload.is_floating_point() or (self._wire.raw and payload.dtype is torch.uint8):
            self.passed += 1
            return self._wire.change(payload, sender, own)
        return payload

    def _combine(self, parts: Parts, op: Any) -> torch.Tensor:
        if op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            stacked = torch.stack(parts)
            return stacked.amax(0) if op == dist.ReduceOp.MAX else stacked.amin(0)
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise NotImplementedError(str(op))
        if not parts[0].is_floating_point():
            return in_order(parts)
        total = self._add(parts)
        return total / len(parts) if op == dist.ReduceOp.AVG else total

    # -- torch.distributed ---------------------------------------------------------------------------------------------

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def get_rank(self, group: Any = None) -> int:
        return self._ranks(group).index(self._local.rank)

    def get_world_size(self, group: Any = None) -> int:
        return len(self._ranks(group))

    def get_process_group_ranks(self, group: Any) -> list[int]:
        return list(self._ranks(group))

    def get_global_rank(self, group: Any, group_rank: int) -> int:
        return self._ranks(group)[group_rank]

    def get_group_rank(self, group: Any, global_rank: int) -> int:
        return self._ranks(group).index(global_rank)

    def new_group(self, ranks: list[int]) -> tuple[int, ...]:
        return tuple(ranks)

    def barrier(self, group: Any = None, async_op: bool = False, device_ids: Any = None) -> "Done":
        self._wait(self._ranks(group))
        return Done()

    def all_reduce(self, tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        tensor.copy_(self._combine([sent for (sent,) in self._swap([tensor], group)], op))
        return Done()

    def reduce(self, tensor, dst=None, op=dist.ReduceOp.SUM, group=None, async_op=False, group_dst=None):
        parts = [sent for (sent,) in self._swap([tensor], group)]
        if self._local.rank == (dst if group_dst is None else self._ranks(group)[group_dst]):
            tensor.copy_(self._combine(parts, op))
        return Done()

    def broadcast(self, tensor, src=None, group=None, async_op=False, group_src=None):
        at = self._ranks(group).index(src) if group_src is None else group_src
        tensor.copy_(self._swap([tensor], group)[at][0])
        return Done()

    def all_gather(self, tensors, tensor, group=None, async_op=False):
        for output, (sent,) in zip(tensors, self._swap([tensor], group), strict=True):
            output.copy_(sent.reshape(output.shape))
        return Done()

    def all_gather_into_tensor(self, output, tensor, group=None, async_op=False):
        parts = [sent.reshape(-1) for (sent,) in self._swap([tensor], group)]
        output.copy_(torch.cat(parts).reshape(output.shape))
        return Done()

    all_gather_single = all_gather_into_tensor

    def reduce_scatter_tensor(self, output, tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        pieces = list(tensor.reshape(len(self._ranks(group)), *output.shape))
        return self.reduce_scatter(output, pieces, op, group)

    reduce_scatter_single = reduce_scatter_tensor

    def reduce_scatter(self, output, tensors, op=dist.ReduceOp.SUM, group=None, async_op=False):
        mine = self.get_rank(group)
        output.copy_(self._combine([sent[mine] for sent in self._swap(tensors, group)], op))
        return Done()

    def all_to_all(self, outputs, tensors, group=None, async_op=False):
        mine = self.get_rank(group)
        for output, sent in zip(outputs, self._swap(tensors, group), strict=True):
            assert output.shape == sent[mine].shape, f"splits disagree: {output.shape} for {sent[mine].shape}"
            output.copy_(sent[mine])
        return Done()

    def all_to_all_single(self, output, tensor, output_splits=None, input_splits=None, group=None, async_op=False):
        size = self.get_world_size(group)
        given = [tensor.shape[0] // size] * size if input_splits is None else list(input_splits)
        wanted = [output.shape[0] // size] * size if output_splits is None else list(output_splits)
        assert sum(given) == tensor.shape[0] and sum(wanted) == output.shape[0], "splits do not add up"
        return self.all_to_all(list(output.split(wanted)), list(tensor.split(given)), group)

    def scatter(self, tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
        at = self._ranks(group).index(src or 0) if group_src is None else group_src
        tensor.copy_(self._swap(scatter_list or [], group)[at][self.get_rank(group)])
        return Done()

    def gather(self, tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
        swapped = self._swap([tensor], group)
        for output, (sent,) in zip(gather_list or [], swapped, strict=False):
            output.copy_(sent)
        return Done()

    def _letters(self, sender: int, receiver: int, tag: int) -> "queue.Queue[torch.Tensor]":
        with self._lock:  # two threads that both find none would each make one
            return self._mail.setdefault((sender, receiver, tag), queue.Queue())

    def isend(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        to = dst if group_dst is None else self._ranks(group)[group_dst]
        self._letters(self._local.rank, to, tag).put(tensor.detach().clone())
        return Done()

    def irecv(self, tensor, src=None, group=None, tag=0, group_src=None):
        sender = src if group_src is None else self._ranks(group)[group_src]
        me = self._local.rank

        def receive() -> None:
            sent = self._letters(sender, me, tag).get(timeout=WAIT_S)
            assert sent.shape == tensor.shape, f"sent {sent.shape}, expected {tensor.shape}"
            tensor.copy_(self._pass(sent, sender, None))

        return Done(receive)

    def send(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        self.isend(tensor, dst, group, tag, group_dst).wait()

    def recv(self, tensor, src=None, group=None, tag=0, group_src=None):
        self.irecv(tensor, src, group, tag, group_src).wait()
        return src

    @staticmethod
    def P2POp(op, tensor, peer=None, group=None, tag=0, group_peer=None):  # noqa: N802
        return SimpleNamespace(op=op, arguments=(tensor, peer, group, tag, group_peer))

    def batch_isend_irecv(self, operations):
        return [operation.op(*operation.arguments) for operation in operations]


class Done:
    """A finished operation; a receive is finished by waiting."""

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self._then = then

    def wait(self, timeout: Any = None) -> bool:
        then, self._then = self._then, None
        if then is not None:
            then()
        return True

    def is_completed(self) -> bool:
        return self._then is None


def answer(problem: Problem, output: Any, arguments: Arguments) -> Any:
    """What is judged: the output, and with it what `updates` are afterwards."""
    return (output, tuple(arguments[i] for i in problem.updates)) if problem.updates else output


def run(entry: Entry, ranks: list[Arguments], add: Add = ring, wire: Wire = untouched) -> tuple[list[Any], int]:
    """What the reference answers on each rank, and how many payloads the wire could change. Inputs stay as they are."""
    module = importlib.import_module(f"problems.{entry.path.stem}")
    threads = Threads(len(ranks), add, wire)
    own = [cloned(arguments) for arguments in ranks] if module.PROBLEM.updates else ranks
    with patched(module, threads), ThreadPoolExecutor(len(ranks)) as pool:
        calls = [pool.submit(threads.run, rank, module.reference, own[rank]) for rank in range(len(ranks))]
        errors = [error for call in calls if (error := call.exception()) is not None]
        # The others only report a broken barrier.
        for error in sorted(errors, key=lambda e: isinstance(e, (threading.BrokenBarrierError, queue.Empty))):
            raise error
        return [answer(module.PROBLEM, call.result(), own[rank]) for rank, call in enumerate(calls)], threads.passed


def unsure(entry: Entry, oracles: list[Any], ranks: list[Arguments]) -> list[Any]:
    """The elements of each rank's answer that are not judged, in its structure; None if there are none."""
    module = importlib.import_module(f"problems.{entry.path.stem}")
    function = module.PROBLEM.unsure
    if function is None:
        return [None] * len(ranks)
    threads = Threads(len(ranks), in_order)
    with patched(module, threads), ThreadPoolExecutor(len(ranks)) as pool:
        calls = [
            pool.submit(threads.run, rank, function, (oracle, *own))
            for rank, (oracle, own) in enumerate(zip(oracles, ranks, strict=True))
        ]
        return [call.result() for call in calls]


@contextlib.contextmanager
def patched(module: Any, threads: Threads) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in list(vars(module).items()):
            if value is dist:
                patch.setattr(module, name, threads)
            elif callable(value) and getattr(value, "__module__", "").startswith("torch.distributed"):
                patch.setattr(module, name, getattr(threads, value.__name__))
        yield


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in a nested value; the weights of layers too."""
    found = []
    for leaf in leaves(value):
        if isinstance(leaf, torch.nn.Module):
            found += [parameter.detach() for parameter in leaf.parameters()]
        elif isinstance(leaf, torch.Tensor):
            found += [leaf._indices(), leaf._values()] if leaf.is_sparse else [leaf]
    return found


def mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with every tensor replaced by the function's."""
    if isinstance(value, torch.nn.Linear):
        layer = torch.nn.Linear(value.in_features, value.out_features)
        layer.weight = torch.nn.Parameter(function(value.weight.detach()))
        layer.bias = torch.nn.Parameter(function(value.bias.detach()))
        return layer
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(item, function) for item in value)
    if isinstance(value, dict):
        return {key: mapped(item, function) for key, item in value.items()}
    return value


def cloned(value: Any) -> Any:
    return mapped(value, torch.clone)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Real numbers in that dtype, complex ones in the complex dtype of its width (single at least). What is float64
    stays so: a problem says it only of what is so whatever the run's dtype."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128 if dtype is torch.float64 else torch.complex64)
        return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype is not torch.float64 else tensor

    return mapped(value, convert)
