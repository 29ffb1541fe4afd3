"""Flags that several commands share, and the defaults that depend on the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import UsageError
from harness.types import BACKENDS, Backend, Check, CollectivesRule, DType, IsolationLevel, PlatformName, Protocol

if TYPE_CHECKING:
    from harness.sandboxes import Access

MOST_GPUS = 4
"""Default world size on a larger node: what ParallelKernelBench publishes its figures for."""


def finite(value: float | None) -> float | None:
    """Refuses NaN and infinity, which a range lets through and no limit can be kept by."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


Platform = Annotated[
    PlatformName | None,
    typer.Option(help="Where candidates run. Default: cuda with two GPUs and a CUDA torch, else cpu."),
]
WorldSize = Annotated[
    int | None,
    typer.Option("--world-size", "--gpus", min=1, max=64, help="Ranks. Default: 2 on cpu, the GPUs up to 4 on cuda."),
]
CaseName = Annotated[
    str | None,
    typer.Option(
        "--case", help="Named sizes of the problem; `problems show` lists them. Default: `default`, else `pkb`."
    ),
]
Suite = Annotated[
    str,
    typer.Option(help="Somebody else's problems: a ParallelKernelBench checkout, a Python file, or a folder of them."),
]
DTypeName = Annotated[DType | None, typer.Option(help="Type of the data. Default: float32 on cpu, bfloat16 on cuda.")]
BackendName = Annotated[
    Backend | None, typer.Option(help="What the candidate is written in. Default: cpp on cpu, cuda on cuda.")
]
ProtocolName = Annotated[Protocol, typer.Option(help="How to time: ours, or as ParallelKernelBench does.")]
CheckName = Annotated[Check, typer.Option(help="What is right: a float64 oracle, or ParallelKernelBench's tolerance.")]
Isolation = Annotated[
    IsolationLevel,
    typer.Option(help="How candidates are jailed: as far as this machine can, with every layer or not at all, or not."),
]
Collectives = Annotated[
    CollectivesRule,
    typer.Option(help="Whether a candidate may call torch.distributed's collectives or NCCL; results say if it does."),
]
Trials = Annotated[int, typer.Option(min=1, max=100, help="Correctness trials, each on fresh inputs.")]
Steps = Annotated[int, typer.Option(min=1, help="Limit of model replies.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Limit of tokens, input and output.")]
Usd = Annotated[float | None, typer.Option(min=0.0, callback=finite, help="Limit of cost, US dollars.")]
Wall = Annotated[float | None, typer.Option(min=1.0, callback=finite, metavar="SECONDS", help="Limit of wall time.")]
DeviceSeconds = Annotated[
    float | None, typer.Option(min=1.0, callback=finite, help="Limit of seconds x devices under lease.")
]
SpeedupTarget = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        callback=finite,
        metavar="X",
        help="Stop once a candidate is more than X times as fast, beyond noise.",
    ),
]
StrategyName = Annotated[
    str,
    typer.Option(
        help="How the run is led: phased (first correct, then fast, another mechanism or a judge on a plateau), "
        "loop (all tools, no guidance), single (one candidate, no feedback), lanes:N (N independent lanes share "
        "the budget), branch:N (N seeds, then branches from the best). N is 3 if left out."
    ),
]
ContextTokens = Annotated[
    int, typer.Option(min=1000, help="Input of a request from which on a summary replaces the conversation.")
]
SandboxAddress = Annotated[
    str,
    typer.Option(
        "--sandbox",
        metavar="ADDRESS",
        help="Where candidates are evaluated instead of here: http(s)://HOST:PORT of `ringsmith sandbox serve`, or "
        "batch:FOLDER (docs/remote.md). Platform and world size then default to the node's. '' is here.",
    ),
]
SandboxCa = Annotated[
    Path | None,
    typer.Option(
        "--sandbox-ca",
        metavar="FILE",
        envvar="RINGSMITH_SANDBOX_CA",
        help="Certificate that signed the node's, if no authority known here did.",
    ),
]
SandboxToken = Annotated[
    Path | None,
    typer.Option(
        "--sandbox-token-file", metavar="FILE", help="The node's token. Default: $RINGSMITH_SANDBOX_TOKEN, if set."
    ),
]
AcceptSuites = Annotated[
    bool,
    typer.Option(
        "--accept-suites",
        help="Also run problem files that others send. They are no candidates: they run with your rights, not jailed.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output, one JSON document per line.")]
RunsDir = Annotated[Path, typer.Option(help="Folder of run records.", show_default="runs/data of this checkout")]


def given(context: typer.Context) -> set[str]:
    """Names of the arguments and options on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


@dataclass(frozen=True)
class Setup:
    """Where and in which type candidates run, fully resolved."""

    platform: PlatformName
    world_size: int
    dtype: DType
    backend: Backend


@dataclass(frozen=True)
class Place:
    """Where candidates are evaluated (`harness.sandboxes.open_sandbox`)."""

    address: str
    access: Access | None = None


HERE = Place("")


def place(address: str, ca: Path | None, token_file: Path | None) -> Place:
    """From the three options. UsageError for an address that is none and for files that cannot be read."""
    from harness.sandboxes import checked

    return Place(checked(address), access(ca, token_file)) if address else HERE


def access(ca: Path | None, token_file: Path | None) -> Access:
    """Raises UsageError for files that cannot be read."""
    from harness.sandboxes import Access

    return Access.given(token_file, ca)


def resolve(
    platform: PlatformName | None,
    world_size: int | None,
    dtype: DType | None,
    backend: Backend | None,
    place: Place = HERE,
) -> Setup:
    """Fill in what was not given from what the machine has. UsageError if it has no GPU for `cuda`; with a node, also
    HarnessError if it cannot be reached."""
    if place.address and (platform is None or (world_size is None and platform == "cuda")):
        chosen, gpus = _of_node(place, platform)
    else:
        from harness import machine

        chosen, gpus = platform or machine.default_platform(), None
    if world_size is None:
        world_size = 2 if chosen == "cpu" else _gpu_count() if gpus is None else min(gpus, MOST_GPUS)
    if backend is not None and backend not in BACKENDS[chosen]:
        raise UsageError(f"platform {chosen} runs {', '.join(BACKENDS[chosen])}, not {backend}")
    return Setup(
        platform=chosen,
        world_size=world_size,
        dtype=dtype or ("float32" if chosen == "cpu" else "bfloat16"),
        backend=backend or BACKENDS[chosen][0],
    )


def _of_node(place: Place, platform: PlatformName | None) -> tuple[PlatformName, int]:
    """The platform to use there and its number of GPUs."""
    from harness.sandboxes import node_facts

    node = node_facts(place.address, place.access)
    if node is None:
        raise UsageError("nobody knows yet what is behind a batch's folder: give --platform and, on cuda, --world-size")
    chosen = platform or node.platform
    if chosen == "cuda" and not node.gpus:
        raise UsageError(f"the node {place.address} has no GPU; use --platform cpu")
    return chosen, len(node.gpus)


def _gpu_count() -> int:
    from harness import machine

    scan = machine.scan_gpus()
    if not scan.gpus:
        raise UsageError(f"platform cuda needs a GPU ({scan.reason}); use --platform cpu or see `ringsmith doctor`")
    return min(len(scan.gpus), MOST_GPUS)
