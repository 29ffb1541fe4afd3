"""Facts of this machine: what `doctor`, the defaults and every `Environment` are made of. Imports no torch.

Nothing here raises: what cannot be found is absent (`None`, an empty tuple), and `GpuScan.reason` says why.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import lease
from harness.lease import Quarantined
from harness.types import Frozen, PlatformName

PROVIDER_KEYS = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "DEEPSEEK_API_KEY",
    "OPENROUTER_API_KEY",
    "MISTRAL_API_KEY",
    "XAI_API_KEY",
    "GROQ_API_KEY",
    "TOGETHERAI_API_KEY",
    "FIREWORKS_AI_API_KEY",
    "MOONSHOT_API_KEY",
    "DASHSCOPE_API_KEY",
    "ZAI_API_KEY",
    "AZURE_API_KEY",
)
"""Environment variables that carry a provider's key, as LiteLLM names them."""

MULTICAST_SWITCHES = {
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""Environment variables that turn NVLink multicast off, and the value that does it."""

KITTENS_VARIABLE = "THUNDERKITTENS_ROOT"
"""Names a ThunderKittens checkout: candidates of backend parallelkittens compile against its headers."""

_CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "sve")
_ISOLATION_TOOLS = ("bwrap", "unshare", "setpriv", "prlimit")
_PROBE_S = 5.0
"""Longest wait for any program asked here."""


class Gpu(Frozen):
    """One GPU as NVML reports it."""

    index: int
    """NVML's index: PCI order, blind to CUDA_VISIBLE_DEVICES."""
    name: str
    uuid: str
    memory_bytes: int
    memory_used_bytes: int
    compute_capability: tuple[int, int]
    driver: str
    nvlinks: int
    """Active NVLink links."""
    nvlink_mb_per_s: int | None
    """Raw rate of one link in one direction, MB/s; None if NVML does not say."""


class GpuScan(Frozen):
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, or why there are none."""

    gpus: tuple[Gpu, ...] = ()
    reason: str = ""
    """Why `gpus` is empty; empty itself otherwise."""


class Cpu(Frozen):
    """The processor as this process may use it."""

    model: str
    cores: int
    """Cores that this process may be scheduled on."""
    memory_bytes: int
    """Physical memory, or the cgroup's limit where that is lower."""
    features: tuple[str, ...]
    """Vector extensions of interest that the processor has."""


class Program(Frozen):
    """A program that was found."""

    path: str
    version: str
    """As the program prints it; empty if it would not say."""


class Toolchain(Frozen):
    """What candidates are compiled with and run on; None = not found."""

    cxx: Program | None
    nvcc: Program | None
    ninja: Program | None
    torch: str | None
    torch_cuda: str | None
    """CUDA version that torch was built for; None for a CPU build or no torch."""


class Isolation(Frozen):
    """What a jail for candidates can be made of."""

    tools: tuple[str, ...]
    """Those of bwrap, unshare, setpriv and prlimit that are installed."""
    root: bool
    layers: tuple[str, ...]
    """Layers that work here: tried, not guessed."""
    lacking: dict[str, str]
    """Layer that does not -> why."""


class Machine(Frozen):
    """Everything above at one moment."""

    harness: str
    python: str
    gpus: GpuScan
    cpu: Cpu
    toolchain: Toolchain
    isolation: Isolation
    keys: tuple[str, ...]
    """Names of the provider keys that are set; never their values."""
    shm_free_bytes: int | None
    """Free space in /dev/shm; None where there is none."""
    multicast_off: dict[str, bool]
    """Per multicast switch: whether it is set to off."""
    default_platform: PlatformName
    quarantined: tuple[Quarantined, ...] = ()
    """Devices that nobody may use until a person says so."""


def machine() -> Machine:
    """All facts; takes about 0.3 s (the programs found are asked for their versions, a jail is tried)."""
    scan, tools = scan_gpus(), toolchain()
    return Machine(
        harness=harness_version(),
        python=platform.python_version(),
        gpus=scan,
        cpu=cpu(),
        toolchain=tools,
        isolation=isolation(),
        keys=keys(),
        shm_free_bytes=shm_free_bytes(),
        multicast_off=multicast_off(),
        default_platform=_choose_platform(scan, tools.torch_cuda),
        quarantined=tuple(lease.quarantined()),
    )


def gpus() -> tuple[Gpu, ...]:
    """The visible GPUs; empty without a driver."""
    return scan_gpus().gpus


def scan_gpus() -> GpuScan:
    """The visible GPUs, and the reason if there are none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # NVMLError, a missing library, a broken installation: all mean "no GPU that we can use"
        return GpuScan(reason=f"NVML: {error}")
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        found = tuple(_gpu(pynvml, index, driver) for index in range(pynvml.nvmlDeviceGetCount()))
    except Exception as error:
        return GpuScan(reason=f"NVML: {error}")
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()
    if not found:
        return GpuScan(reason=f"driver {driver} is loaded but reports no GPU")
    visible = _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return GpuScan(gpus=visible, reason="" if visible else "CUDA_VISIBLE_DEVICES hides every GPU")


def unowned_bytes(devices: Sequence[int]) -> list[int] | None:
    """Per GPU the memory in use that belongs to no process: the driver's own, and what dead processes have left behind.
    None if NVML does not say what each process has."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # as in `scan_gpus`
        return None
    try:
        found = []
        for device in devices:
            handle = pynvml.nvmlDeviceGetHandleByIndex(device)
            owned = [process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            if None in owned:
                return None
            found.append(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) - sum(owned))
        return found
    except Exception:
        return None
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        memory_bytes=memory.total,
        memory_used_bytes=memory.used,
        compute_capability=(major, minor),
        driver=driver,
        nvlinks=_active_links(nvml, handle),
        nvlink_mb_per_s=_link_speed(nvml, handle),
    )


def _active_links(nvml: Any, handle: Any) -> int:
    active = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:  # a link number that this GPU does not have, or no NVLink at all
            continue
    return active


def _link_speed(nvml: Any, handle: Any) -> int | None:
    try:
        (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    except nvml.NVMLError:
        return None
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    return int(field.value.uiVal) or None


def _visible(found: tuple[Gpu, ...], setting: str | None) -> tuple[Gpu, ...]:
    """Apply CUDA_VISIBLE_DEVICES as CUDA does: indices or UUID prefixes, ending at the first that matches nothing."""
    if setting is None:
        return found
    visible: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        by_uuid = entry.startswith("GPU-")
        named = [gpu for gpu in found if (gpu.uuid.startswith(entry) if by_uuid else str(gpu.index) == entry)]
        if len(named) != 1:
            break
        visible += named
    return tuple(visible)


def cpu() -> Cpu:
    """The processor, its cores and its memory."""
    info = _read("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    have = set(flags[1].split()) if flags else set()
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if (text := _read(path).strip()).isdigit():
            limits.append(int(text))
    return Cpu(
        model=model[1].strip() if model else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=min(limits),
        features=tuple(name for name in _CPU_FEATURES if name in have),
    )


def toolchain() -> Toolchain:
    """Compilers and torch. nvcc is looked for in CUDA_HOME first, as torch does."""
    cuda_home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    home_nvcc = shutil.which("nvcc", path=f"{cuda_home}/bin") if cuda_home else None
    nvcc = home_nvcc or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    # A ninja from PyPI lies beside the interpreter, which need not be on PATH.
    ninja = shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))
    return Toolchain(
        cxx=_program(shutil.which("g++") or shutil.which("c++"), "-dumpfullversion"),
        nvcc=_program(nvcc, "--version", r"release [\d.]+, V([\d.]+)"),
        ninja=_program(ninja, "--version"),
        torch=torch_version(),
        torch_cuda=torch_cuda(),
    )


def torch_version() -> str | None:
    """Version of the installed torch, unimported; None without one."""
    return _version("torch")


def torch_cuda() -> str | None:
    """CUDA version that torch was built for, read from its `version.py`: PyPI's CUDA wheels have no `+cu...` suffix."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    text = _read(f"{spec.submodule_search_locations[0]}/version.py")
    built = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return built[1] if built else None


def isolation() -> Isolation:
    """What the jail can be made of, and which of its layers work. Takes 0.2 s the first time."""
    from harness import jail  # which asks this module for the memory

    found = jail.tried()
    return Isolation(
        tools=tuple(tool for tool in _ISOLATION_TOOLS if shutil.which(tool)),
        root=os.geteuid() == 0,
        layers=found.layers,
        lacking=found.lacking,
    )


def keys() -> tuple[str, ...]:
    """Names of the provider keys set in the environment; never their values."""
    return tuple(name for name in PROVIDER_KEYS if os.environ.get(name))


def shm_free_bytes() -> int | None:
    """Free space in /dev/shm, where ranks share memory; None where there is none."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return None


def multicast_off() -> dict[str, bool]:
    """Which of the switches that turn NVLink multicast off are set."""
    return {name: os.environ.get(name) == off for name, off in MULTICAST_SWITCHES.items()}


def default_platform() -> PlatformName:
    """`cuda` with two visible GPUs and a CUDA torch, else `cpu`."""
    return _choose_platform(scan_gpus(), torch_cuda())


def _choose_platform(scan: GpuScan, cuda: str | None) -> PlatformName:
    return "cuda" if len(scan.gpus) >= 2 and cuda else "cpu"


def harness_version() -> str:
    """Version of Ringsmith; `uninstalled` when it runs from a bare checkout."""
    return _version("ringsmith") or "uninstalled"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _program(path: str | None, flag: str, pattern: str = r"([\d.]+)") -> Program | None:
    if path is None:
        return None
    said = re.search(pattern, _ask(path, flag) or "")
    return Program(path=path, version=said[1] if said else "")


def _ask(*command: str) -> str | None:
    """Standard output of a program; None if it is absent, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
