"""Facts of the machine: never an exception, never a key's value."""

import sys
from types import SimpleNamespace

import pytest

from harness import machine


class NVMLError(Exception):
    pass


def fake_nvml(count: int = 2, links: int = 18, speed: int | None = 26562) -> SimpleNamespace:
    def link_state(handle: int, link: int) -> int:
        if link >= links:
            raise NVMLError("Not Supported")
        return 1

    def fields(handle: int, ids: list[int]) -> list[SimpleNamespace]:
        status = 0 if speed is not None else 3
        return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=speed or 0))]

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_NVLINK_MAX_LINKS=36,
        NVML_FEATURE_ENABLED=1,
        NVML_SUCCESS=0,
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON=90,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.65",
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}{handle}",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=140 * 2**30, used=2**29),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetNvLinkState=link_state,
        nvmlDeviceGetFieldValues=fields,
    )


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(**settings: int | None) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**settings))

    return install


def test_gpus_as_nvml_reports_them(nvml) -> None:
    nvml(count=4)
    found = machine.gpus()
    assert [gpu.index for gpu in found] == [0, 1, 2, 3]
    assert found[1].compute_capability == (9, 0)
    assert (found[1].nvlinks, found[1].nvlink_mb_per_s) == (18, 26562)


def test_gpus_without_nvlink_are_still_gpus(nvml) -> None:
    nvml(links=0, speed=None)
    assert [(gpu.nvlinks, gpu.nvlink_mb_per_s) for gpu in machine.gpus()] == [(0, None), (0, None)]


@pytest.mark.parametrize(
    ("setting", "indices"),
    [("2,0", [2, 0]), ("GPU-11", [1]), ("", []), ("-1", []), ("0,9,1", [0]), ("NoDevFiles", []), ("GPU-", [])],
)
def test_cuda_visible_devices_is_applied_as_cuda_does(nvml, monkeypatch, setting: str, indices: list[int]) -> None:
    nvml(count=4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    scan = machine.scan_gpus()
    assert [gpu.index for gpu in scan.gpus] == indices
    assert bool(scan.reason) == (not indices)


def test_any_nvml_failure_is_no_gpus_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake_nvml()

    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    broken.nvmlInit = fail
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    assert machine.scan_gpus() == machine.GpuScan(reason="NVML: Driver Not Loaded")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what a missing package looks like to `import`
    assert machine.gpus() == ()
    assert "pynvml" in machine.scan_gpus().reason


@pytest.mark.parametrize(
    ("count", "cuda", "platform"), [(2, "13.0", "cuda"), (2, None, "cpu"), (1, "13.0", "cpu"), (0, "13.0", "cpu")]
)
def test_default_platform(nvml, monkeypatch, count: int, cuda: str | None, platform: str) -> None:
    nvml(count=count)
    monkeypatch.setattr(machine, "torch_cuda", lambda: cuda)
    assert machine.default_platform() == platform


def test_facts_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sekrit")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    facts = machine.machine()
    assert facts.cpu.cores >= 1 and facts.cpu.memory_bytes > 2**28 and facts.cpu.model
    assert "OPENAI_API_KEY" in facts.keys and "ANTHROPIC_API_KEY" not in facts.keys
    assert "sekrit" not in facts.model_dump_json()
    assert facts.multicast_off["NCCL_NVLS_ENABLE"]
    assert machine.Machine.model_validate_json(facts.model_dump_json()) == facts


def test_torch_is_described_without_being_imported(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (package / "version.py").write_text("__version__ = '2.11.0'\ncuda: Optional[str] = '12.8'\n")
    monkeypatch.setattr(
        machine.importlib.util, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(package)])
    )
    assert machine.torch_cuda() == "12.8"
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    assert machine.torch_cuda() is None


def test_a_program_that_hangs_or_fails_has_no_version(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PROBE_S", 0.2)
    for name, body in (("slow", "sleep 5"), ("broken", "exit 1")):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\nexec {body}\n" if name == "slow" else f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
        assert machine._program(str(script), "--version") == machine.Program(path=str(script), version="")
    assert machine._program(None, "--version") is None
