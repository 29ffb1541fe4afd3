"""The two sides of one evaluation and what can be asked of them. Imports no torch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness import diagnosis, waiting
from harness.outcomes import Outcome
from harness.processes import Processes
from harness.progress import Phase
from harness.ranks import RankSet
from harness.types import Finding, Mismatch, RankReport, Request, Stage, Verdict
from harness.wording import one_line

_MAX_SUMMARY = 4000

Item = dict[str, Any]
"""Inputs that an output answers, as `ReferenceRank` names them: a slot, or an entry of the ring."""
Other = tuple[str, Item, Verdict | None]
"""Other inputs: a name, which they are, and the verdict on an output that is what would be right for them."""


@dataclass(frozen=True)
class Wrong:
    """Which output was wrong: its number in the last check, the inputs that it answers, and those of other calls, with
    names, whose values it may hold."""

    number: int
    item: Item
    others: tuple[tuple[str, Item], ...]


class FailedError(Exception):
    """The candidate failed: leave the stages."""

    def __init__(
        self,
        verdict: Verdict,
        summary: str,
        ranks: tuple[RankReport, ...] = (),
        log: str = "",
        wrong: Wrong | None = None,
    ) -> None:
        super().__init__(summary)
        # What ranks say is in it.
        self.verdict, self.summary, self.ranks = verdict, one_line(summary, _MAX_SUMMARY), ranks
        self.log, self.wrong = log, wrong
        self.findings: tuple[Finding, ...] = ()


class Pair:
    """Asks both sides. What goes wrong on the candidate's is a FailedError, on the reference's a SandboxError."""

    def __init__(self, box: Processes, request: Request, reference: RankSet, candidate: RankSet) -> None:
        self.box, self.request, self.limits = box, request, request.limits
        self.reference, self.candidate = reference, candidate
        self.stage = Stage.load
        self.check_s = self.call_s = 0.0
        """Seconds that judging one output, and a single call, took last."""
        self.uses_collectives = False
        self._asked_s = self._compiling_s = 0.0
        """How long the candidate's ranks have taken for all requests; and beyond what those may without a compiler."""

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(
        self,
        op: str,
        message: dict[str, Any] | list[dict[str, Any]],
        deadline_s: float | Callable[[Phase], float],
        *,
        meanwhile: Callable[[], None] = lambda: None,
        when: str = "",
    ) -> list[dict[str, Any]]:
        """The replies of the candidate's ranks; `when` says in what circumstances, if that explains a hang."""
        began = time.monotonic()
        self.candidate.begin(op, message)
        meanwhile()
        outcome = self.candidate.wait(self._within_budget(deadline_s))
        took_s = time.monotonic() - began
        self._asked_s += took_s
        if op == "call":
            self.call_s = took_s
        if callable(deadline_s):
            self._compiling_s += max(0.0, took_s - deadline_s(Phase.calling))
        if not outcome.ok:
            logs = [self.candidate.log(rank) for rank in range(self.candidate.world_size)]
            busy = self.box.busy() if any(rank.silent for rank in outcome.ranks) else ()
            verdict, summary, reports = diagnosis.judge_failure(outcome, self.stage, logs, busy)
            if when and verdict in (Verdict.deadlock, Verdict.timeout):
                summary += f" ({when}; single calls were right)"
            if verdict in (Verdict.deadlock, Verdict.timeout) and self._left_s < 0:
                verdict, summary = Verdict.timeout, f"{self._too_long}; the last time: {summary}"
            errors = [
                r.error["message"] for r in outcome.ranks if r.error and diagnosis.COMPILERS & set(r.error["bases"])
            ]
            failed = FailedError(verdict, summary, reports, log=errors[0] if errors else "")
            if verdict in (Verdict.deadlock, Verdict.timeout):
                working = verdict is Verdict.timeout
                failed.findings = waiting.explain(outcome.ranks, self.request.candidate.source, working=working)
            raise failed
        self._look(outcome.replies)
        if self._left_s < 0:
            raise FailedError(Verdict.timeout, f"{self._too_long}, if never too long at once")
        return outcome.replies

    @property
    def _left_s(self) -> float:
        return self.limits.evaluation_s * self.request.soak - (self._asked_s - self._compiling_s)

    @property
    def _too_long(self) -> str:
        most_s = self.limits.evaluation_s * self.request.soak
        return f"its ranks took more than {most_s:g} s in all for what they were asked"

    def _within_budget(self, deadline_s: float | Callable[[Phase], float]) -> float | Callable[[Phase], float]:
        """Deadlines follow from times that the candidate has had a hand in: none is longer than what is left to it."""
        left_s = max(1.0, self._left_s)
        if not callable(deadline_s):
            return min(deadline_s, left_s)
        return lambda phase: deadline_s(phase) if phase is Phase.building else min(deadline_s(phase), left_s)

    def _look(self, replies: list[dict[str, Any]]) -> None:
        """What the ranks saw of themselves."""
        for rank, reply in enumerate(replies):
            if tripped := reply.get("tripped"):
                names = ", ".join(str(name) for name in tripped)[:300] if isinstance(tripped, list) else "something"
                raise FailedError(
                    Verdict.integrity, f"rank {rank} has replaced what timing and judging rely on: {names}"
                )
            if looked := reply.get("looked"):
                steps = ", ".join(str(step) for step in looked)[:300] if isinstance(looked, list) else "something"
                raise FailedError(
                    Verdict.integrity,
                    f"rank {rank} looked into the process that calls it, which is to be left alone: {steps}",
                )
            if odd := reply.get("odd"):
                raise FailedError(Verdict.integrity, f"rank {rank}: {str(odd)[:300]}")
            if reply.get("changed"):
                raise FailedError(
                    Verdict.integrity, f"rank {rank}: `solution` wrote into its inputs; it must leave them as they are"
                )
            if reply.get("settled") is False:
                raise FailedError(
                    Verdict.race,
                    f"rank {rank}: the output went on changing after the call had returned and the caller's stream was "
                    "done: work on another stream, in a thread or by a peer is not waited for",
                )
            self.uses_collectives |= bool(reply.get("collectives"))

    def ask_reference(
        self, op: str, message: dict[str, Any] | list[dict[str, Any]], doing: str, deadline_s: float = 120.0
    ) -> list[dict[str, Any]]:
        return self.expect(self.reference.ask(op, message, deadline_s=deadline_s), doing)

    def expect(self, outcome: Outcome, doing: str) -> list[dict[str, Any]]:
        return self.box.expect(outcome, doing).replies

    def call_deadline(self, limit_s: float) -> Callable[[Phase], float]:
        """A candidate may compile on its first call; that is the build's time, one for all calls: it is its ranks that
        say whether a compiler is at work."""
        build_s = max(limit_s, self.limits.build_s - self._compiling_s)
        return lambda phase: build_s if phase is Phase.building else limit_s

    # -- inputs and outputs --------------------------------------------------------------------------------------------

    def give_inputs(self, slot: int, *, in_place: bool = False) -> int:
        """Fresh secret inputs in `slot` of both sides; returns the bytes of one rank's. `in_place`: into the buffers
        that the candidate has there."""
        message = {"slot": slot, "seed": secrets.randbits(62), "in_place": in_place}
        drawn = self.ask_reference("inputs", message, "drawing inputs")
        messages = [{"slot": slot, "in_place": in_place, "tree": reply["tree"]} for reply in drawn]
        self.ask("inputs", messages, self.limits.first_call_s)
        return (self.candidate.exchange / "inputs.0").stat().st_size

    def judge(
        self,
        replies: Sequence[dict[str, Any]],
        items: Sequence[Item],
        *,
        trial: int,
        verdict: Verdict,
        others: Sequence[Other] | Callable[[int], Sequence[Other]] = (),
        note: str = "",
        one: bool = False,
        which: Sequence[Sequence[int]] | None = None,
    ) -> list[dict[str, Any]]:
        """Compare every rank's outputs, a list of one for each of `items` (`one`: a single one; `which`: for each rank,
        the numbers of those for which it has one), in full. Raises FailedError with `verdict` if any is wrong; what is
        wrong is then compared with what would be right for `others` (or `others(number of the output)`): if they are
        that as a whole, its verdict counts."""
        began = time.monotonic()
        trees = [{"kind": "list", "items": [reply.get("tree")]} if one else reply.get("tree") for reply in replies]
        common = {"items": list(items), "trial": trial, "check": self.request.check}
        numbers = [None] * len(trees) if which is None else which
        messages = [{**common, "tree": tree, "which": own} for tree, own in zip(trees, numbers, strict=True)]
        judged = self.ask_reference("check", messages, "checking outputs")
        self.check_s = (time.monotonic() - began) / max(1, len(items))
        structure = [reply["structure"] for reply in judged]
        found = [[[Mismatch.model_validate(m) for m in item] for item in reply["mismatches"]] for reply in judged]
        if any(structure):
            rank = next(r for r, error in enumerate(structure) if error)
            reports = self._reports(structure, [[] for _ in structure], trial)
            raise FailedError(Verdict.shape_error, f"rank {rank}: {structure[rank]}", reports)
        for number in range(len(items)):
            wrong = [rank[number] for rank in found]
            if any(wrong):
                summary = diagnosis.judge_mismatches(wrong) + note.format(number=number + 1)
                candidates = others(number) if callable(others) else others
                if verdict is Verdict.race and (times := diagnosis.near(wrong)) is not None:
                    verdict, candidates = Verdict.wrong_values, ()
                    summary += (
                        f"; {times:.2f} times what is allowed: too inaccurate for these inputs rather than a race (add "
                        "up in a wider type or in several sums, round less often)"
                    )
                likeness = self._explain(number, items[number], candidates)
                said, whole = diagnosis.judge_likeness([name for name, _, _ in candidates], likeness)
                if whole is not None:
                    verdict = candidates[whole][2] or verdict
                where = Wrong(number, items[number], tuple((name, item) for name, item, _ in candidates))
                reports = self._reports(structure, wrong, trial)
                raise FailedError(verdict, summary + said, reports, wrong=where)
        if not any(reply["shared"] for reply in judged):
            for rank, reply in enumerate(replies):
                if reply.get("shared"):
                    raise FailedError(
                        Verdict.integrity, f"rank {rank}: the output lies in the memory of an input: return a clone"
                    )
        return judged

    def _explain(self, number: int, item: Item, others: Sequence[Other]) -> list[list[tuple[bool, float]]]:
        """For each of the others (whole, share of the wrong elements) of every rank that is wrong."""
        if not others:
            return []
        message = {
            "number": number, "item": item, "others": [other for _, other, _ in others], "check": self.request.check,
        }  # fmt: skip
        replies = self.ask_reference("explain", message, "looking for where wrong values come from")
        wrong = [reply["likeness"] for reply in replies if reply["likeness"] is not None]
        return [[(bool(rank[i][0]), float(rank[i][1])) for rank in wrong] for i in range(len(others))]

    def _reports(self, structure: list[str | None], wrong: list[list[Mismatch]], trial: int) -> tuple[RankReport, ...]:
        return tuple(
            RankReport(
                rank=rank,
                ok=not error and not mismatches,
                stage=self.stage,
                calls_completed=trial + 1,
                message=error or ("wrong values" if mismatches else ""),
                mismatches=tuple(mismatches),
            )
            for rank, (error, mismatches) in enumerate(zip(structure, wrong, strict=True))
        )
