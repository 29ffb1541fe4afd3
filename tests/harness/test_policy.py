"""The static gate."""

import pytest

from harness.policy import violation

FORBIDDEN = [
    ("x = 1\ny = 'cuMulticastCreate'\n", 2, "cuMulticastCreate", "multicast"),
    ('SOURCE = """\n\nasm("multimem.ld_reduce.add.f32")\n"""', 3, "multimem", "multicast"),
    ("CU_MULTICAST_GRANULARITY_MINIMUM", 1, "CU_MULTICAST_GRANULARITY_MINIMUM", "multicast"),
    ("\n\npynvml.nvmlDeviceSetGpuLockedClocks(h, 1, 2)", 3, "nvmlDeviceSetGpuLockedClocks", "settings"),
    ("nvmlDeviceResetApplicationsClocks(h)", 1, "nvmlDeviceResetApplicationsClocks", "settings"),
    ("os.system('nvidia-smi -lgc 1500')", 1, "nvidia-smi -lgc", "settings"),
]


@pytest.mark.parametrize(("source", "line", "name", "why"), FORBIDDEN, ids=lambda v: str(v)[:20])
def test_a_forbidden_feature_is_named_with_its_line(source, line, name, why):
    reason = violation(source)
    assert f"line {line} names {name!r}" in reason and why in reason and "\n" not in reason


@pytest.mark.parametrize(
    "source",
    [
        "",
        "import torch.distributed as dist\ndef solution(x):\n    dist.all_reduce(x)\n    return x\n",
        "nvmlDeviceGetCount()",
        "# multi mem, multiple memories, nvidia smi",
        "cudaMemcpyPeerAsync(a, 0, b, 1, n, s); __multi(3); mul_mem = 3",
    ],
)
def test_ordinary_sources_pass(source):
    assert violation(source) is None


def test_the_examples_pass():
    from pathlib import Path

    examples = list((Path(__file__).parents[2] / "prompts" / "examples").glob("*/*.py"))
    assert examples
    for path in examples:
        assert violation(path.read_text()) is None, path.name
