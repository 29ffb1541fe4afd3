"""What runs on a node of a Ray cluster: one sandbox, and what is said of the node. Imports no Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


class Worker:
    """Runs on a node: one sandbox, asked by name. A Ray actor."""

    def __init__(self, platform: PlatformName, world_size: int, isolation: IsolationLevel) -> None:
        from harness.evaluate import Sandbox

        self._sandbox = Sandbox(platform, world_size, isolation=isolation)

    def node(self) -> tuple[str, Any]:
        return self._answer(lambda: Node(source=source_hash(), environment=self._sandbox.environment()))

    def ask(self, name: str, *arguments: Any) -> tuple[str, Any]:
        return self._answer(lambda: getattr(self._sandbox, name)(*arguments))

    def profile(self, request: Request, kernel: str) -> tuple[str, Any]:
        """The profile, the device-seconds, and the files that it wrote, by name."""
        import tempfile

        def profile() -> tuple[Profile, float, dict[str, bytes]]:
            with tempfile.TemporaryDirectory() as folder:
                found, device_s = self._sandbox.profile(request, Path(folder), kernel)
                return found, device_s, {path.name: path.read_bytes() for path in Path(folder).iterdir()}

        return self._answer(profile)

    def close(self) -> None:
        self._sandbox.close()

    def _answer(self, call: Any) -> tuple[str, Any]:
        """Our own exceptions cross as they are: Ray would wrap them."""
        from harness.evaluate import CandidateFailedError
        from problems.spec import ProblemError

        try:
            return "answer", call()
        except CandidateFailedError as failed:
            return "failed", failed.evaluation
        except (RingsmithError, ProblemError) as error:
            return "raised", error
