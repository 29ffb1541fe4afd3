"""What a machine's facts mean for Ringsmith: one finding per line, each with what to do about it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum

from harness.calibration import Calibration
from harness.lease import Quarantined
from harness.machine import PROVIDER_KEYS, GpuScan, Isolation, Machine, Toolchain
from harness.types import Frozen, PlatformName
from harness.wording import one_line
from service.calibration import age, differences

_BUSY = 0.05
"""Share of a GPU's memory in use above which somebody else is on it; a bare driver holds about 0.5%."""
_SHM_BYTES = 2**30
"""Less shared memory than this and large cases cannot exchange their buffers on the cpu platform."""


_SDKS = {
    "openai": "openai/...",
    "anthropic": "anthropic/...",
    "google.genai": "google/... and gemini/...",
    "litellm": "every other provider",
    "tenacity": "any provider (it repeats failed requests)",
}
"""What each brings; all come with one extra."""


class Mark(StrEnum):
    ok = "ok"
    warning = "warning"
    """Works, with less speed, safety or choice."""
    missing = "missing"
    """Something cannot be done at all."""


class Finding(Frozen):
    """One line of the report."""

    mark: Mark
    what: str
    detail: str
    remedy: str = ""
    """What to do about it; empty if nothing need be done."""


class Diagnosis(Frozen):
    """What `ringsmith doctor` reports."""

    machine: Machine
    findings: tuple[Finding, ...]
    usable: dict[PlatformName, bool]
    """Whether candidates can be evaluated on each platform."""


def diagnose(machine: Machine, calibrations: Mapping[PlatformName, Calibration | None] | None = None) -> Diagnosis:
    """Judge the facts. Reads nothing but whether the model clients are installed.

    `calibrations` holds what is stored for this machine, by platform."""
    tools = machine.toolchain
    findings = (
        *_platforms(machine),
        *_gpus(machine.gpus),
        *_quarantined(machine.quarantined),
        *_toolchain(tools, bool(machine.gpus.gpus)),
        *_isolation(machine.isolation),
        *_memory(machine.shm_free_bytes),
        *_multicast(machine),
        *_calibrations(machine, calibrations or {}),
        *_models(machine.keys),
    )
    return Diagnosis(
        machine=machine, findings=findings, usable={"cpu": _cpu_usable(tools), "cuda": _cuda_usable(machine)}
    )


def _calibrations(machine: Machine, stored: Mapping[PlatformName, Calibration | None]) -> Iterator[Finding]:
    for platform, calibration in stored.items():
        what, remedy = f"peaks of {platform}", f"ringsmith doctor --calibrate --platform {platform}"
        if calibration is None:
            # Not a lack: nothing is wrong without it, and datasheet floors are there where datasheets are.
            yield Finding(mark=Mark.ok, what=what, detail=f"not measured on this machine; `{remedy}` does")
        elif changed := "; ".join(differences(calibration, machine)):
            yield Finding(mark=Mark.warning, what=what, detail=f"{age(calibration)}, but {changed}", remedy=remedy)
        else:
            yield Finding(mark=Mark.ok, what=what, detail=age(calibration))


def _cpu_usable(tools: Toolchain) -> bool:
    return bool(tools.torch and tools.cxx)


def _cuda_usable(machine: Machine) -> bool:
    tools = machine.toolchain
    return bool(machine.gpus.gpus and tools.torch_cuda and tools.nvcc)


def _platforms(machine: Machine) -> Iterator[Finding]:
    cpu, tools = machine.cpu, machine.toolchain
    yield Finding(
        mark=Mark.ok,
        what="machine",
        detail=f"{cpu.model}, {cpu.cores} cores, {_gib(cpu.memory_bytes)}, {' '.join(cpu.features) or 'no AVX2'}",
    )
    lacking = [name for name, there in (("torch", tools.torch), ("g++", tools.cxx)) if not there]
    yield _platform("cpu", lacking, f"up to {cpu.cores} ranks with a core each")
    lacking = [
        name
        for name, there in (("a GPU", machine.gpus.gpus), ("a CUDA torch", tools.torch_cuda), ("nvcc", tools.nvcc))
        if not there
    ]
    yield _platform("cuda", lacking, f"up to {len(machine.gpus.gpus)} ranks")


def _platform(name: PlatformName, lacking: list[str], detail: str) -> Finding:
    if lacking:
        return Finding(mark=Mark.missing, what=f"platform {name}", detail=f"not usable: needs {', '.join(lacking)}")
    return Finding(mark=Mark.ok, what=f"platform {name}", detail=f"usable, {detail}")


def _gpus(scan: GpuScan) -> Iterator[Finding]:
    if not scan.gpus:
        yield Finding(
            mark=Mark.missing,
            what="GPUs",
            detail=f"none: {scan.reason}",
            remedy="use --platform cpu here, or a machine with NVIDIA GPUs and their driver",
        )
        return
    for gpu in scan.gpus:
        used = gpu.memory_used_bytes / gpu.memory_bytes
        major, minor = gpu.compute_capability
        yield Finding(
            mark=Mark.warning if used > _BUSY else Mark.ok,
            what=f"GPU {gpu.index}",
            detail=f"{gpu.name}, sm_{major}{minor}, {_gib(gpu.memory_bytes)} ({used:.0%} in use), driver {gpu.driver}",
            remedy="somebody is using it: timings will suffer" if used > _BUSY else "",
        )
    if len(scan.gpus) < 2:
        yield Finding(mark=Mark.warning, what="links", detail="one GPU: problems run with world size 1 only")
    elif links := min(gpu.nvlinks for gpu in scan.gpus):
        rate = scan.gpus[0].nvlink_mb_per_s
        # NVML gives the raw rate of one link in one direction.
        total = f", {links * rate / 1000:.0f} GB/s per GPU and direction" if rate else ""
        yield Finding(mark=Mark.ok, what="links", detail=f"{links} NVLinks active per GPU{total}")
    else:
        yield Finding(mark=Mark.warning, what="links", detail="a GPU has no active NVLink: its transfers go over PCIe")


def _quarantined(devices: tuple[Quarantined, ...]) -> Iterator[Finding]:
    for entry in devices:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.at))
        yield Finding(
            mark=Mark.warning,
            what=f"quarantine {entry.kind} {entry.device}",
            detail=f"not used since {since}: {one_line(entry.reason, 300)}",
            remedy="see to it, then `ringsmith doctor --lift-quarantine`",
        )


def _toolchain(tools: Toolchain, gpus: bool) -> Iterator[Finding]:
    if tools.torch is None:
        yield Finding(
            mark=Mark.missing, what="torch", detail="not installed", remedy="run `make` (it picks the right build)"
        )
    elif gpus and tools.torch_cuda is None:
        yield Finding(
            mark=Mark.missing,
            what="torch",
            detail=f"{tools.torch}, a CPU build, though there are GPUs",
            remedy="install torch built for CUDA",
        )
    else:
        yield Finding(mark=Mark.ok, what="torch", detail=f"{tools.torch}, {_built_for(tools)}")
    for name, program, lack, remedy in (
        ("g++", tools.cxx, Mark.missing, "install g++ (C++ candidates, and CUDA's host compiler)"),
        ("nvcc", tools.nvcc, Mark.missing if gpus else Mark.ok, "install the CUDA toolkit or set CUDA_HOME"),
        ("ninja", tools.ninja, Mark.warning, "install ninja (candidates that compile through torch need it)"),
    ):
        if program:
            yield Finding(mark=Mark.ok, what=name, detail=f"{program.version or 'unknown version'} at {program.path}")
        elif lack is Mark.ok:
            yield Finding(mark=lack, what=name, detail="not found, and not needed without a GPU")
        else:
            yield Finding(mark=lack, what=name, detail="not found", remedy=remedy)
    if tools.nvcc and tools.torch_cuda and tools.nvcc.version.split(".")[0] != tools.torch_cuda.split(".")[0]:
        yield Finding(
            mark=Mark.warning,
            what="CUDA versions",
            detail=f"nvcc is {tools.nvcc.version}, torch was built for {tools.torch_cuda}",
            remedy=f"torch refuses to build extensions across major versions: install CUDA {tools.torch_cuda}",
        )


def _built_for(tools: Toolchain) -> str:
    return f"built for CUDA {tools.torch_cuda}" if tools.torch_cuda else "CPU build"


def _isolation(isolation: Isolation) -> Iterator[Finding]:
    found = f"{'root' if isolation.root else 'not root'}; found: {', '.join(isolation.tools) or 'no tools'}"
    layers = ", ".join(isolation.layers)
    if not isolation.lacking:
        yield Finding(mark=Mark.ok, what="isolation", detail=f"all layers work here: {layers} ({found})")
        return
    lacking = "; ".join(f"no {layer}: {one_line(why, 200)}" for layer, why in isolation.lacking.items())
    remedy = "install bubblewrap or util-linux" if not {"bwrap", "unshare"} & set(isolation.tools) else ""
    remedy = remedy or ("" if isolation.root else "run as root") or "run where namespaces are allowed (CAP_SYS_ADMIN)"
    yield Finding(
        mark=Mark.warning,
        what="isolation",
        detail=f"candidates get {layers}, but {lacking} ({found})",
        remedy=f"{remedy}; --isolation strict refuses to go on without",
    )


def _memory(free_bytes: int | None) -> Iterator[Finding]:
    if free_bytes is None:
        yield Finding(
            mark=Mark.missing,
            what="/dev/shm",
            detail="not there: ranks cannot share memory",
            remedy="mount a tmpfs on it",
        )
    else:
        low = free_bytes < _SHM_BYTES
        yield Finding(
            mark=Mark.warning if low else Mark.ok,
            what="/dev/shm",
            detail=f"{_gib(free_bytes)} free",
            remedy="large cases need more: in Docker, --shm-size=8g" if low else "",
        )


def _multicast(machine: Machine) -> Iterator[Finding]:
    off = [name for name, is_off in machine.multicast_off.items() if is_off]
    yield Finding(
        mark=Mark.ok,
        what="NVLink multicast",
        detail=f"off for every rank, reference included; off in this environment: {', '.join(off) or 'by no switch'}",
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3g} GiB"


def _models(keys: tuple[str, ...]) -> Iterator[Finding]:
    if keys:
        yield Finding(mark=Mark.ok, what="model keys", detail=f"set: {', '.join(keys)}")
    else:
        yield Finding(
            mark=Mark.warning,
            what="model keys",
            detail="none set: `run` can only replay recordings",
            remedy=f"export one of {', '.join(PROVIDER_KEYS[:4])}, ... (`eval` needs none)",
        )
    for module, serves in _SDKS.items():
        if not _installed(module):
            yield Finding(
                mark=Mark.missing if keys else Mark.warning,
                what=f"SDK {module}",
                detail=f"not installed: {serves} cannot be called",
                remedy="pip install 'ringsmith[models]'",
            )


def _installed(module: str) -> bool:
    """Looks for the parent first: asking for `google.genai` where there is no `google` raises."""
    parts = module.split(".")
    return all(importlib.util.find_spec(".".join(parts[: i + 1])) for i in range(len(parts)))
