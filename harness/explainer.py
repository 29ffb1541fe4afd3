"""The reference ranks' part in finding out why an output is wrong: what its values are, and what they hang on.

`Explainer` answers the requests of `harness.probing`. Every request is collective.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from harness import provenance, regions, ring, sources, suppositions
from harness.altered import recorded
from harness.errors import HarnessError
from harness.exchange import MalformedError, structure_error
from harness.numerics import Judged, judge, likeness, pairs, sure
from harness.part import MOST, Fact
from harness.regions import Region
from harness.suppositions import Supposition

if TYPE_CHECKING:
    from harness.rank import Handler
    from harness.reference_rank import ReferenceRank

_DENSE = 0.5
"""Share of what hangs on a rank that must be wrong for that to be the reason."""
_NO_INFLUENCE = 0.2
"""Share of what should have changed from which on it matters that it has not."""


class Explainer:
    def __init__(self, owner: ReferenceRank) -> None:
        self._owner = owner
        self._base: Any = None
        """The candidate's output in the call that others are compared with."""
        self._varied: tuple[Any, ...] = ()
        """The inputs of which one rank's numbers have been changed."""
        self.handlers: dict[str, Handler] = {
            "explain": self._explain,
            "diagnose": self._diagnose,
            "suppose": self._suppose,
            "again": self._again,
            "vary": self._vary,
            "influence": self._influence,
        }

    def _wrong(self, number: int) -> Any:
        """Output `number` of the last check, or None if it was right here."""
        outputs = self._owner.outputs
        return outputs[number] if number < len(outputs) else None

    def _explain(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whether an output that the last check found wrong, number `number`, is what would be right for one of the
        items `others`. Reply: `likeness`, [whole, share of wrong elements] of each; None on a rank that is right."""
        owner, output = self._owner, self._wrong(message["number"])
        right = ring.clone(owner.right(message["item"]).right)
        found = []
        for item in message["others"]:
            other = owner.right(item).right
            if output is not None:
                found.append(likeness(output, right, other, trial=0, **owner.how(message["check"])))
        return {"likeness": found if output is not None else None}

    def _diagnose(self, message: dict[str, Any]) -> dict[str, Any]:
        """What the wrong values of output `number` are; `parts`: whether there is time to evaluate the reference twice
        for each rank. Reply: `facts`, a list of region and statement of each, and `suppositions` that can be tried."""
        owner, output = self._owner, self._wrong(message["number"])
        others = [(name, ring.clone(owner.right(item).right[1])) for name, item in message["others"]]
        known = owner.right(message["item"])
        arguments, (expected, oracle, unsure) = ring.clone(known.arguments), ring.clone(known.right)
        evaluate = owner.oracle if message["parts"] else None
        found = sources.gather(arguments, self._names(), oracle, others, evaluate, self._variable)
        possible = self._possible(arguments, message["item"].get("slot", 0)) if message["parts"] else []
        facts: list[dict[str, Any]] = []
        if output is not None:
            tensors = pairs(sure(output, unsure), sure(expected, unsure), sure(oracle, unsure), "out")
            # Plain values have no sources: where one is wrong, it is not said which tensor is whose.
            for (path, out, ref, true), source in zip(
                tensors, found if len(found) == len(tensors) else (), strict=False
            ):
                judged = self._judge(out, ref, true, message["check"])
                source.weigh(judged.truth)
                if judged.wrong:
                    facts += [_as_json(path, region, fact) for region, fact in provenance.explain(judged, out, source)]
        return {"facts": facts, "suppositions": [it.facts() for it in possible]}

    def _possible(self, arguments: tuple[Any, ...], slot: int) -> list[Supposition]:
        """What may be supposed; `slot`: of the inputs, those below hold earlier calls'."""
        owner = self._owner
        with recorded() as calls:
            owner.oracle(arguments)
        earlier = [number for number in sorted(owner.slots) if number < slot]
        return suppositions.listed(self._padded(arguments), self._names(), owner.state.world_size, earlier, calls)

    def _suppose(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whether output `number` is what would be right under a supposition. Reply: `holds`, `firm` (too many or too
        exact numbers for chance); both None on a rank that is right."""
        owner, output = self._owner, self._wrong(message["number"])
        known = owner.right(message["item"])
        supposed = suppositions.tried(
            Supposition(**message["supposition"]), self._padded(known.arguments),
            lambda slot: owner.slots[slot].arguments, owner.oracle,
        )  # fmt: skip
        return self._as_supposed(output, known.right, supposed, message["check"])

    def _as_supposed(self, output: Any, right: Any, supposed: Any, check: str) -> dict[str, Any]:
        """Whether an output's wrong elements are as they would be under a supposition."""
        if output is None or supposed is None:
            return {"holds": None if output is None else False, "firm": False}
        expected, oracle, unsure = right
        holds, firm = True, False
        tensors = pairs(sure(output, unsure), sure(expected, unsure), sure(oracle, unsure), "out")
        others = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in ring.tensors(supposed)]
        if len(others) != len(tensors):
            return {"holds": False, "firm": False}
        for (_, out, ref, true), other in zip(tensors, others, strict=True):
            judged = self._judge(out, ref, true, check)
            if not judged.wrong:
                continue
            bad, allowed = judged.inaccurate(), judged.bound.max_error
            if other.shape != bad.shape:
                return {"holds": False, "firm": False}
            is_, would = judged.out.double()[bad], other.double()[bad]
            reach = ((is_ - judged.truth.double()[bad]).abs() / 4).clamp_max(allowed)
            near = ((is_ - would).abs() <= reach) | (is_ == would) | (is_.isnan() & would.isnan())
            holds &= float(near.double().mean()) >= MOST
            firm |= int(bad.sum()) >= 4 or allowed <= 1e-3 * float(judged.truth.abs().max())
        return {"holds": holds, "firm": firm}

    def _judge(self, out: torch.Tensor, expected: torch.Tensor, oracle: torch.Tensor, check: str) -> Judged:
        how = self._owner.how(check)
        return judge(out, expected, oracle, how["exact"], how["check"], how["world_size"])

    def _names(self) -> list[str]:
        """Of the reference's arguments."""
        assert self._owner.problem is not None
        return [f"argument `{name}`" for name in inspect.signature(self._owner.problem.reference).parameters]

    def _padded(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """With the reference's own values for arguments that are not given."""
        assert self._owner.problem is not None
        parameters = list(inspect.signature(self._owner.problem.reference).parameters.values())
        return (*arguments, *(parameter.default for parameter in parameters[len(arguments) :]))

    def _variable(self, position: int) -> bool:
        """Whether the numbers of an argument may be replaced by others."""
        problem = self._owner.problem
        assert problem is not None
        return problem.changing is None or position in problem.changing

    # -- probes --------------------------------------------------------------------------------------------------------

    def _again(self, message: dict[str, Any]) -> dict[str, Any]:
        """A second call on the inputs of a slot: is its output the same as the first one's, number 0 of the last check?
        Reply: `right`, and `same` (None where the first was right). What it returned is what `influence` compares
        with."""
        owner, first = self._owner, self._wrong(0)
        known = owner.right({"slot": message["slot"]})
        self._base = self._read(message["tree"], known)
        expected, oracle, unsure = known.right
        tensors = pairs(sure(self._base, unsure), sure(expected, unsure), sure(oracle, unsure), "out")
        right = not any(self._judge(out, ref, true, message["check"]).wrong for _, out, ref, true in tensors)
        return {"right": right, "same": None if first is None else _same(first, self._base)}

    def _vary(self, message: dict[str, Any]) -> dict[str, Any]:
        """The inputs of slot `slot` with all numbers of rank `rank` changed that may; no slot of this side holds them.
        Reply: `tree`."""
        owner = self._owner
        given = owner.slots[message["slot"]].given
        if owner.state.rank == message["rank"]:
            given = sources.vary(given, self._variable)
        self._varied = owner.state.groups.materialise(given)
        return {"tree": owner.state.exchange["inputs"].write(list(given))}

    def _influence(self, message: dict[str, Any]) -> dict[str, Any]:
        """Where the output for what `vary` made, as against that for `slot`, has not changed although what is right
        has, or has although what is right is the same. Reply: `facts`."""
        owner, rank = self._owner, message["rank"]
        base, varied = owner.right({"slot": message["slot"]}), owner.evaluate(self._varied)
        output = self._read(message["tree"], varied)
        facts = []
        for (path, out, _, true), (_, before, ref, former) in zip(
            pairs(output, varied.right[0], varied.right[1], "out"),
            pairs(self._base, base.right[0], base.right[1], "out"),
            strict=True,
        ):
            if out.shape != before.shape or out.dim() == 0 or out.numel() == 0:
                continue
            judged = self._judge(before, ref, former, message["check"])
            if judged.truth.shape != before.shape:  # complex numbers, as pairs
                out, before, true, former = (torch.view_as_real(t) for t in (out, before, true, former))
            moved = (true.double() - former.double()).abs()
            must, may = moved > 4 * judged.bound.max_error, moved > 0
            has = (out != before) & ~(out.isnan() & before.isnan())
            found = _sway(must, may, has, rank, owner.state.world_size)
            if rank != owner.state.rank and judged.wrong:
                found += _boundary(judged.inaccurate(), may, rank, owner.state.world_size)
            facts += [_as_json(path, region, fact) for region, fact in found]
        return {"facts": facts}

    def _read(self, tree: Any, known: Any) -> Any:
        """An output of the candidate, in the problem's canonical form. Raises HarnessError if it is none."""
        owner = self._owner
        assert owner.state.device is not None
        if (error := structure_error(known.right[0], tree)) is not None:
            raise HarnessError(f"no output: {error}")
        try:
            output = owner.state.exchange["outputs"].read(tree, owner.state.device)
        except MalformedError as error:
            raise HarnessError(f"no output: {error}") from None
        return owner.canonical(output, known.arguments)


_TOO_LITTLE = {
    True: "does not change with rank {peer}'s inputs, as it must",
    False: "changes only in part with rank {peer}'s inputs, where all of it must",
}


def _sway(
    must: torch.Tensor, may: torch.Tensor, has: torch.Tensor, rank: int, world_size: int
) -> list[tuple[Region, Fact]]:
    """Statements on the influence of one rank's inputs."""
    found = []
    missing, foreign = must & ~has, has & ~may
    if bool(must.any()) and float(missing.sum()) >= _NO_INFLUENCE * float(must.sum()):
        for region in regions.find(missing, world_size):
            share = float(missing[region.index].double().mean())
            found.append((region, Fact(
                "no influence", _TOO_LITTLE[float(missing.sum()) >= MOST * float(must.sum())],
                f"with all of rank {rank}'s numbers changed, {share:.0%} of it stayed what it was", peer=rank,
            )))  # fmt: skip
    if float(foreign.sum()) >= _NO_INFLUENCE * float(has.sum()) and bool(foreign.any()):
        for region in regions.find(foreign, world_size):
            found.append((region, Fact(
                "foreign influence", "changes with rank {peer}'s inputs, as it must not",
                f"with rank {rank}'s numbers changed it changed", peer=rank,
            )))  # fmt: skip
    return found


def _boundary(bad: torch.Tensor, may: torch.Tensor, rank: int, world_size: int) -> list[tuple[Region, Fact]]:
    """If what is wrong is what hangs on one other rank's inputs, and nothing else is."""
    if float(may.double().mean()) > 0.9 or float((bad & may).sum()) < 0.99 * float(bad.sum()):
        return []
    if float(bad.sum()) < _DENSE * float(may.sum()):
        return []
    text = (
        "wrong just where rank {peer}'s inputs enter: what is taken over from that neighbour (a halo, an edge, a shard)"
    )
    evidence = f"with rank {rank}'s numbers changed, what is right changes there and nowhere else"
    return [(region, Fact("neighbour's data", text, evidence, peer=rank)) for region in regions.find(bad, world_size)]


def _same(a: Any, b: Any) -> bool:
    return all(ring.same_bits(x, y) for x, y in zip(ring.tensors(a), ring.tensors(b), strict=True))


def _as_json(path: str, region: Region, fact: Fact) -> dict[str, Any]:
    return {
        "output": path, **region.facts(), "cause": fact.cause, "says": fact.text, "evidence": fact.evidence,
        "certain": fact.certain, "peer": fact.peer,
    }  # fmt: skip
