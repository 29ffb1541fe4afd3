"""The code that prompts show must work: the pages' example on real ranks, CUDA sources through nvcc and Triton kernels
through Triton without a GPU. Triton is no dependency: where it is missing only Python's own checks are made."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Request

PROMPTS = Path(__file__).resolve().parents[2] / "prompts"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")

# The pages show a ring shift; all-gather is W - 1 of them.
ALL_GATHER = """
def solution(tensor, _shift=solution):
    parts, rank, world_size = [tensor], kit.rank(), kit.world_size()
    for _ in range(world_size - 1):
        parts.append(_shift(parts[-1]))
    return torch.stack([parts[(s - rank) % world_size] for s in range(world_size)])
"""


def page_example(backend: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (PROMPTS / "backends" / f"{backend}.md").read_text(), re.S)
    return code


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_cpp_pages_example_works(world_size):
    candidate = Candidate(source=page_example("cpp") + ALL_GATHER, backend=Backend.cpp)
    with Sandbox("cpu", world_size) as box:
        evaluation = box.evaluate(
            Request(candidate=candidate, problem=2, case="odd", platform="cpu", world_size=world_size, dtype="float32")
        )
    assert evaluation.passed, evaluation.summary


@needs_nvcc
def test_cuda_sources_compile_without_a_gpu():
    """All in one session: the page's example and every worked example that kit builds."""
    examples = {path.stem: path.read_text() for path in sorted((PROMPTS / "examples" / "cuda").glob("*.py"))}
    sources = {"page": page_example("cuda"), **{n: s for n, s in examples.items() if "kit.build" in s}}
    assert len(sources) >= 9
    with Sandbox("cuda", 2) as box:
        reports = {
            name: box.compile(Candidate(source=source, backend=Backend.cuda)) for name, source in sources.items()
        }
    failed = {name: report.log or report.summary for name, report in reports.items() if report.verdict is not None}
    assert not failed
    assert all(report.built for report in reports.values())


def triton_sources() -> dict[str, str]:
    examples = {path.stem: path.read_text() for path in sorted((PROMPTS / "examples" / "triton").glob("*.py"))}
    return {"page": page_example("triton"), **examples}


@pytest.mark.parametrize("name", triton_sources())
def test_triton_sources_name_what_there_is(name):
    """Names by ruff, what is taken from kit and how kernels are launched by hand."""
    source = triton_sources()[name]
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

    from harness import kit

    tree = ast.parse(source)
    kernels = {
        node.name: [argument.arg for argument in node.args.args]
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    options = {"num_warps", "num_stages"}
    launched = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kit":
            assert hasattr(kit, node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):  # kernel[grid](...)
            parameters = kernels[node.func.value.id]
            by_name = {keyword.arg for keyword in node.keywords} - options
            assert set(parameters[len(node.args) :]) == by_name, node.func.value.id
            launched.add(node.func.value.id)
    assert launched and launched == {name for name in kernels if name.endswith("_kernel")}


@pytest.fixture
def triton_without_a_gpu(monkeypatch):
    """Triton compiles for a GPU that need not be there if something says which."""
    pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = GPUTarget("cuda", 90, 32)
    fake = {"get_current_target": target, "get_current_device": 0, "get_current_stream": 0}
    fake = types.SimpleNamespace(**{name: lambda *_, value=value: value for name, value in fake.items()})
    monkeypatch.setattr(driver, "_active", fake)


def test_triton_kernels_compile_without_a_gpu(triton_without_a_gpu, tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    language, mock = (
        importlib.import_module("triton.language"),
        importlib.import_module("triton.runtime.jit").MockTensor,
    )
    wide, word, byte = torch.int64, torch.int32, torch.uint8
    sizes = {"m": 4096, "n": 4608, "k": 1536, "chunk_rows": 512, "CHUNKS": 8, "GROUP_M": 8, "PRECISION": "ieee"}
    odd = sizes | {"m": 1031, "n": 517, "k": 61, "chunk_rows": 1088}
    large = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "EVEN_K": True, "num_warps": 8, "num_stages": 4}
    small = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "EVEN_K": False, "num_warps": 4, "num_stages": 3}
    calls = []
    for world, lanes in ((2, 2), (3, 4)):
        ranks = {"signals": wide, "rank": 1, "WORLD": world, "LANES": lanes}
        calls.append(("shift_kernel", ranks | dict(x=byte, out=byte, buffers=wide, n=1 << 20, BLOCK=8192, num_warps=8)))
        for dtype, total, n, block in (
            (torch.bfloat16, language.float32, 1 << 20, 8192),
            (torch.float32, language.float32, 1031 * 517, 1024),
            (torch.float64, language.float64, 14 * 40, 512),
        ):
            sums = dict(x=dtype, out=dtype, buffers=wide, n=n, shard=8 * block, sums_at=1 << 20, BLOCK=block, SUM=total)
            calls.append(("allreduce_kernel", ranks | sums))
        for dtype, settings in (
            (torch.bfloat16, sizes | large),
            (torch.float16, odd | small),
            (torch.float32, sizes | small | {"EVEN_K": True}),
            (torch.float32, odd | small),
        ):
            given = dict(signals=wide, rank=1, WORLD=world, turn=word) | settings
            calls.append(("gemm_kernel", given | dict.fromkeys(("a_local", "gathered", "b", "out"), dtype)))
    calls.append(("signal_kernel", {"signals": wide, "turn": word, "peer": 1, "word": 8}))

    kernels = {}
    for name, source in triton_sources().items():
        # The jit reads a kernel's source from its file. Nothing of kit is used before `solution`.
        file = tmp_path / f"{name}.py"
        file.write_text(source)
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernels |= {k: v for k, v in vars(module).items() if k.endswith("_kernel")}
    assert set(kernels) == {name for name, _ in calls}
    for name, arguments in calls:
        mocked = {argument: mock.wrap_dtype(value) for argument, value in arguments.items()}
        compiled = kernels[name].warmup(grid=(1,), **mocked)
        ptx = compiled.asm["ptx"]
        assert "ld.global.sys.acquire" in ptx or name == "signal_kernel", name
        assert "atom.global.sys.release" in ptx or name == "gemm_kernel", name
        if name == "gemm_kernel" and arguments["BLOCK_M"] == 128:
            assert "wgmma" in ptx and compiled.metadata.shared <= 227 << 10
