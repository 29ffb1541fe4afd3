"""Process groups that a problem passes as arguments: made once per set of ranks, in the same order on every rank."""

from __future__ import annotations

from typing import Any

from problems.spec import Subgroups


class Groups:
    """The groups of one rank."""

    def __init__(self) -> None:
        self._made: dict[tuple[tuple[int, ...], ...], Any] = {}

    def materialise(self, value: Any) -> Any:
        """The same with each `Subgroups` replaced by this rank's process group. Every rank asks at the same time."""
        if isinstance(value, Subgroups):
            return self._of(value.sets)
        if isinstance(value, (tuple, list)):
            items = [self.materialise(item) for item in value]
            return type(value)(items)
        return value

    def _of(self, sets: tuple[tuple[int, ...], ...]) -> Any:
        import torch.distributed as dist

        if sets == (tuple(range(dist.get_world_size())),):
            return dist.group.WORLD
        if sets not in self._made:
            rank = dist.get_rank()
            # Making a group is collective over the world: everybody makes all of them and keeps one.
            made = {ranks: dist.new_group(list(ranks)) for ranks in sets}
            self._made[sets] = next(group for ranks, group in made.items() if rank in ranks)
        return self._made[sets]
