"""`load_inline` with the real compiler, as a candidate calls it. C++ only: no CUDA compiler is needed."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from harness import extension, kit, policy, slim_headers, torch_build
from harness.diagnosis import classify_error
from harness.rank import describe_error
from harness.types import Verdict

_PYTHON_H = Path(sysconfig.get_path("include"), "Python.h")
pytestmark = pytest.mark.skipif(
    not (shutil.which("ninja") and shutil.which("c++") and _PYTHON_H.exists()),
    reason="ninja, c++ or Python.h is missing",
)

MIXED = r"""
torch::Tensor scale(torch::Tensor x, double factor, c10::optional<torch::Tensor> out) {
    TORCH_CHECK(x.dim() == 1, "scale: one dimension, not ", x.dim());
    torch::Tensor result = out.has_value() ? *out : torch::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "scale", [&] {
        const scalar_t* from = x.data_ptr<scalar_t>();
        for (int64_t i = 0; i < x.numel(); ++i)
            result.data_ptr<scalar_t>()[i] = static_cast<scalar_t>(static_cast<float>(from[i]) * factor);
    });
    return result;
}
std::vector<torch::Tensor> both(std::vector<torch::Tensor> xs, at::IntArrayRef sizes, at::ScalarType type) {
    return {torch::zeros(sizes, xs[0].options().dtype(type)), at::cat(xs).sum() + torch::full({1}, 0.5)};
}
"""
UNDECLARED = "int twice(int n) {\n    return 2 * undeclared_factor;\n}\n"


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def bound(cache_folder, bind_kit, monkeypatch):
    monkeypatch.setenv("RINGSMITH_CACHE", str(cache_folder))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    return bind_kit(f'"""A candidate."""\nA = r"""{MIXED}"""\nB = """{UNDECLARED}"""\n')


@pytest.fixture
def commands(monkeypatch):
    """Compilers that were run, which really run."""
    seen, run = [], torch_build._Processes.run
    monkeypatch.setattr(torch_build._Processes, "run", lambda self, command: seen.append(command) or run(self, command))
    return seen


def test_an_extension_is_built_with_few_headers_and_behaves_as_with_all(bound, commands):
    build = {"name": "mixed", "cpp_sources": [MIXED], "functions": {"scale": "Scales.", "both": "Both."}}
    module = extension.load_inline(**build, verbose=True, extra_cflags=["-O0"])
    compiled = [command for command in commands if "-c" in command]
    assert len(compiled) == 1 and "-DAT_PER_OPERATOR_HEADERS" in compiled[0], "torch's own headers were not needed"
    assert module.scale(torch.ones(3), 2.0, None).tolist() == [2, 2, 2]
    assert module.scale(torch.ones(3, dtype=torch.bfloat16), factor := 2.0, None).dtype is torch.bfloat16 and factor
    assert module.scale(x := torch.ones(3), 3.0, x) is not None and x.tolist() == [3, 3, 3]
    zeros, total = module.both([torch.ones(2), torch.ones(3)], [2, 1], torch.int32)
    assert zeros.shape == (2, 1) and zeros.dtype is torch.int32 and total.tolist() == [5.5]
    assert "Scales." in module.scale.__doc__ and "torch.Tensor" in module.scale.__doc__
    with pytest.raises(RuntimeError, match="scale: one dimension, not 2"):
        module.scale(torch.ones(3, 3), 2.0, None)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        module.scale("x", 2.0, None)
    assert bound.built == ["extension mixed"]
    commands.clear()
    assert extension.load_inline(**build, extra_cflags=["-O0"]) is module and commands == []


def test_a_certain_error_is_answered_without_the_full_headers(bound, commands, cache_folder):
    with pytest.raises(kit.BuildError) as caught:
        extension.load_inline("broken", [UNDECLARED], functions=["twice"])
    line = bound.source[: bound.source.index("return 2 *")].count("\n") + 1
    text = str(caught.value)
    assert f"candidate.py:{line}:" in text and "'undeclared_factor' was not declared" in text
    assert not re.search(r"/|slim|ringsmith\b|warning|note:", text.replace("//", ""))
    assert classify_error(describe_error(caught.value)) is Verdict.compile_error
    assert not any((cache_folder / "extension").glob("*/broken.so"))


def test_what_the_full_headers_may_know_is_not_refused(bound, tmp_path):
    """The check fails, for want of headers."""
    source = "torch::Tensor f(torch::Tensor x) { return torch::nn::functional::relu(x); }"
    text = f'#include <torch/extension.h>\n#line 1 "candidate.py"\n{source}\n'
    path = tmp_path / "main.cpp"
    path.write_text(text)
    slim_headers.write(tmp_path, text, extension._INCLUDE)
    flags = ("-isystem", str(slim_headers.FOLDER), "-isystem", str(tmp_path), "-DAT_PER_OPERATOR_HEADERS")
    command = ("c++", *_INCLUDES, "-std=c++20", "-c", str(path), "-o", "main.o")
    unit = torch_build.Unit("identity", path, command, text, flags, True)
    ended = []
    processes = torch_build._Processes(tmp_path)
    run = processes.run
    processes.run = lambda c: ended.append(result := run(c)) or result
    torch_build._check(processes, unit)
    assert ended[0][0] == 1 and "error" in ended[0][1]


_INCLUDES = [
    "-isystem", str(extension._INCLUDE), "-isystem", str(extension._INCLUDE / "torch/csrc/api/include"),
    "-isystem", str(_PYTHON_H.parent),
]  # fmt: skip


def test_no_type_caster_is_missing(tmp_path):
    """One that is missing would be noticed only when a function is called."""
    (tmp_path / "main.cpp").write_text("#include <torch/extension.h>\n")
    slim_headers.write(tmp_path, "", extension._INCLUDE)
    slim = ["-isystem", str(slim_headers.FOLDER), "-isystem", str(tmp_path), "-DAT_PER_OPERATOR_HEADERS"]
    found = []
    for flags in ([], slim):
        command = ["c++", *flags, *_INCLUDES, "-std=c++20", "-E", "-P", str(tmp_path / "main.cpp")]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found.append(set(re.findall(r"\b(?:type_caster|always_construct_holder)\s*<[^{;]*?\{", text)))
    assert found[0] == found[1] and len(found[0]) > 40


@pytest.mark.parametrize(
    ("source", "complete"),
    [
        ("auto y = torch::empty_like(x); y.std(0); std::vector<int> v; x.size(0);", True),
        ("TORCH_LIBRARY(a, m) {}", False),
        ("auto v = at::var(x, 0);", False),
        ("auto v = at::std(x, 0);", False),
        ("using namespace at; auto v = std(x, 0);", False),
        ("at::native::foo(x);", False),
        ('#include "mine.h"', False),
        ('#include "cuda_bf16.h"', True),
        ("#define F(a) at::a##_like", False),
    ],
)
def test_sources_for_which_few_headers_could_mean_something_else_are_told_apart(tmp_path, source, complete):
    assert slim_headers.write(tmp_path, source, extension._INCLUDE) is complete


def test_the_functions_that_a_source_names_are_included(tmp_path):
    def written(source):
        slim_headers.write(tmp_path, source, extension._INCLUDE)
        return (tmp_path / "ringsmith_functions.h").read_text() + (tmp_path / "ringsmith_used.h").read_text()

    text = written("at::relu_(x); at::add_out(out, x, y); x.cumsum(0); at::cat({x});")
    assert all(f"<ATen/ops/{name}.h>" in text for name in ("relu", "add", "cat")) and "cumsum" not in text
    assert "IListRef" in text and "FACTORIES" not in text
    assert "FACTORIES" in written("torch::tensor({1, 2});")
    assert "FACTORIES" in written("torch::empty({1}, torch::requires_grad());")
    assert "DEVICE_OF" in written("OptionalCUDAGuard guard(device_of(x));")


def test_a_forbidden_name_in_an_extension_is_refused_before_it_is_loaded(bound, cache_folder):
    source = 'const char* name() { return "cuMulticastCreate"; }'
    with pytest.raises(policy.PolicyError, match="cuMulticastCreate") as caught:
        extension.load_inline("forbidden", source, functions=["name"])
    assert classify_error(describe_error(caught.value)) is Verdict.policy
    assert not list(cache_folder.rglob("forbidden.so"))
