"""What runs on a node of a Ray cluster: one sandbox, and what is said of the node. Imports no Ray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.allowance import Allowance
from harness.errors import RingsmithError
from harness.profile_types import Profile
from harness.remote.messages import identity
from harness.types import Environment, Frozen, IsolationLevel, PlatformName, Request


class Node(Frozen):
    """What must be alike on all nodes for their results to be comparable."""

    source: str
    """Hash of Ringsmith's own files that judge and measure."""
    environment: Environment

    def differences(self, other: Node) -> list[str]:
        pairs = {"Ringsmith's files": (self.source, other.source)}
        for name in ("devices", "driver", "cuda", "torch", "python", "harness", "isolation"):
            pairs[name] = (getattr(self.environment, name), getattr(other.environment, name))
        return [f"{name}: {mine} and {theirs}" for name, (mine, theirs) in pairs.items() if mine != theirs]


def source_hash() -> str:
    """Of the folders that decide what an evaluation says."""
    return identity().code


class Answer(NamedTuple):
    kind: Literal["answer", "failed", "raised"]
    """`failed`: value is the evaluation of a CandidateFailedError; `raised`: another exception of ours."""
    value: Any
    device_s: float
    waited_s: float


class Worker:
    """Runs on a node: one sandbox, asked by name. A Ray actor with one thread for what it is asked and one for `used`
    and `end`."""

    def __init__(self, platform: PlatformName, world_size: int, isolation: IsolationLevel) -> None:
        from harness.evaluate import Sandbox

        self._sandbox = Sandbox(platform, world_size, isolation=isolation)
        self._allowance = Allowance()
        self._number = 0
        self._end: tuple[int, str] = (0, "")

    def node(self) -> Answer:
        return self._answer(0, lambda _: Node(source=source_hash(), environment=self._sandbox.environment()))

    def ask(self, name: str, *arguments: Any) -> Answer:
        return self._answer(0, lambda _: getattr(self._sandbox, name)(*arguments))

    def work(self, number: int, name: str, *arguments: Any) -> Answer:
        """As `ask`, of what takes an allowance; `number` names the call."""
        return self._answer(number, lambda allowance: getattr(self._sandbox, name)(*arguments, allowance=allowance))

    def profile(self, number: int, request: Request, kernel: str) -> Answer:
        """The profile, the device-seconds, and the files that it wrote, by name."""
        import tempfile

        def profile(allowance: Allowance) -> tuple[Profile, float, dict[str, bytes]]:
            with tempfile.TemporaryDirectory() as folder:
                found, device_s = self._sandbox.profile(request, Path(folder), kernel, allowance=allowance)
                return found, device_s, {path.name: path.read_bytes() for path in Path(folder).iterdir()}

        return self._answer(number, profile)

    def used(self) -> tuple[int, float, float]:
        """Number of the call that goes on or was the last, its device-seconds and its seconds of waiting so far."""
        allowance = self._allowance
        return self._number, allowance.device_s, allowance.waited_s

    def end(self, number: int, limit: str) -> None:
        """End that call, even if it has not begun yet: a limit is reached where it was asked for."""
        self._end = number, limit

    def close(self) -> None:
        self._sandbox.close()

    def _answer(self, number: int, call: Callable[[Allowance], Any]) -> Answer:
        """Our own exceptions cross as they are: Ray would wrap them."""
        from harness.evaluate import CandidateFailedError
        from problems.spec import ProblemError

        allowance = Allowance((lambda: self._end[1] if self._end[0] == number else None) if number else None)
        self._allowance, self._number = allowance, number
        kind: Literal["answer", "failed", "raised"] = "answer"
        value: Any = None
        try:
            value = call(allowance)
        except CandidateFailedError as failed:
            kind, value = "failed", failed.evaluation
        except (RingsmithError, ProblemError) as error:
            kind, value = "raised", error
        return Answer(kind, value, allowance.device_s, allowance.waited_s)
