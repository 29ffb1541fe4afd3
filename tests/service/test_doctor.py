"""What the facts of a machine are taken to mean."""

import importlib.util

import pytest

from harness.jail import LAYERS
from harness.lease import Quarantined
from harness.machine import Cpu, Gpu, GpuScan, Isolation, Machine, Program, Toolchain
from service.doctor import Mark, diagnose

GPU = Gpu(
    index=0,
    name="NVIDIA H200",
    uuid="GPU-0",
    memory_bytes=140 * 2**30,
    memory_used_bytes=2**29,
    compute_capability=(9, 0),
    driver="580.65",
    nvlinks=18,
    nvlink_mb_per_s=26562,
)
NODE = Machine(
    harness="0.1.0",
    python="3.11.7",
    gpus=GpuScan(gpus=tuple(GPU.model_copy(update={"index": i}) for i in range(4))),
    cpu=Cpu(model="AMD EPYC", cores=64, memory_bytes=2**39, features=("avx2",)),
    toolchain=Toolchain(
        cxx=Program(path="/usr/bin/g++", version="12.2.0"),
        nvcc=Program(path="/usr/local/cuda/bin/nvcc", version="13.0.88"),
        ninja=Program(path="/usr/bin/ninja", version="1.11.1"),
        torch="2.11.0+cu130",
        torch_cuda="13.0",
    ),
    isolation=Isolation(tools=("unshare", "setpriv"), root=True, layers=LAYERS, lacking={}),
    keys=("OPENAI_API_KEY",),
    shm_free_bytes=2**36,
    multicast_off={"NCCL_NVLS_ENABLE": True, "TORCH_SYMM_MEM_DISABLE_MULTICAST": True, "NVSHMEM_DISABLE_NVLS": True},
    default_platform="cuda",
)
BARE = NODE.model_copy(
    update={
        "gpus": GpuScan(reason="NVML: Driver Not Loaded"),
        "toolchain": Toolchain(cxx=None, nvcc=None, ninja=None, torch=None, torch_cuda=None),
        "isolation": Isolation(tools=(), root=False, layers=LAYERS[:2], lacking={"own network": "no program"}),
        "keys": (),
        "shm_free_bytes": None,
    }
)


def marks(machine: Machine) -> dict[str, Mark]:
    return {finding.what: finding.mark for finding in diagnose(machine).findings}


def test_a_complete_node_has_nothing_to_complain_about() -> None:
    diagnosis = diagnose(NODE)
    assert diagnosis.usable == {"cpu": True, "cuda": True}
    assert {finding.mark for finding in diagnosis.findings} == {Mark.ok}
    links = next(finding for finding in diagnosis.findings if finding.what == "links")
    assert links.detail == "18 NVLinks active per GPU, 478 GB/s per GPU and direction"


def test_a_bare_machine_is_told_everything_at_once() -> None:
    diagnosis = diagnose(BARE)
    assert diagnosis.usable == {"cpu": False, "cuda": False}
    bad = {finding.what for finding in diagnosis.findings if finding.mark is not Mark.ok}
    assert {
        "platform cpu",
        "platform cuda",
        "GPUs",
        "torch",
        "g++",
        "ninja",
        "isolation",
        "/dev/shm",
        "model keys",
    } <= bad
    assert "Driver Not Loaded" in next(f.detail for f in diagnosis.findings if f.what == "GPUs")


@pytest.mark.parametrize(
    ("change", "what", "mark"),
    [
        ({"gpus": GpuScan(gpus=(GPU,))}, "links", Mark.warning),
        ({"gpus": GpuScan(gpus=(GPU.model_copy(update={"memory_used_bytes": 2**36}),))}, "GPU 0", Mark.warning),
        ({"gpus": GpuScan(gpus=(GPU, GPU.model_copy(update={"nvlinks": 0})))}, "links", Mark.warning),
        ({"toolchain": NODE.toolchain.model_copy(update={"torch_cuda": "12.8"})}, "CUDA versions", Mark.warning),
        ({"toolchain": NODE.toolchain.model_copy(update={"torch_cuda": None})}, "torch", Mark.missing),
        ({"toolchain": NODE.toolchain.model_copy(update={"nvcc": None})}, "platform cuda", Mark.missing),
        (
            {"isolation": Isolation(tools=("unshare",), root=True, layers=LAYERS[:3], lacking={"own ipc": "EPERM"})},
            "isolation",
            Mark.warning,
        ),
        ({"shm_free_bytes": 2**26}, "/dev/shm", Mark.warning),
        ({"keys": ()}, "model keys", Mark.warning),
    ],
)
def test_each_lack_is_marked(change: dict, what: str, mark: Mark) -> None:
    assert marks(NODE.model_copy(update=change))[what] is mark


def test_what_a_jail_lacks_is_said_with_its_reason() -> None:
    lame = Isolation(tools=(), root=True, layers=LAYERS[:3], lacking={"own network": "not\npermitted"})
    (finding,) = [f for f in diagnose(NODE.model_copy(update={"isolation": lame})).findings if f.what == "isolation"]
    assert "no own network: not" in finding.detail and "\n" not in finding.detail and "bubblewrap" in finding.remedy


def test_devices_in_quarantine_are_listed() -> None:
    entry = Quarantined(kind="cuda", device=2, reason="copies arrive wrong", at=0.0)
    (finding,) = [
        f for f in diagnose(NODE.model_copy(update={"quarantined": (entry,)})).findings if f.mark is Mark.warning
    ]
    assert finding.what == "quarantine cuda 2" and "copies arrive wrong" in finding.detail
    assert "--lift-quarantine" in finding.remedy


def test_each_missing_sdk_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(names: set[str]) -> dict[str, Mark]:
        find = importlib.util.find_spec
        with monkeypatch.context() as patch:
            patch.setattr(importlib.util, "find_spec", lambda name: None if name in names else find(name))
            findings = [f for f in diagnose(NODE).findings if f.what.startswith("SDK")]
        assert all("ringsmith[models]" in finding.remedy for finding in findings)
        return {finding.what: finding.mark for finding in findings}

    assert missing(set()) == {}
    assert missing({"anthropic", "google"}) == {"SDK anthropic": Mark.missing, "SDK google.genai": Mark.missing}
    assert set(missing({"openai", "litellm", "tenacity"})) == {"SDK openai", "SDK litellm", "SDK tenacity"}
