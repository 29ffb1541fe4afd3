"""`kit.build` with the real compiler, bound as the harness binds it."""

import os
import shutil
import subprocess

import pytest
import torch

from harness import kit
from harness.diagnosis import classify_error
from harness.progress import Phase
from harness.rank import describe_error
from harness.types import Verdict

ADD = r"""
#include <cstdint>
extern "C" void add(const float* a, const float* b, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}
extern "C" {
double half(double x) { return x / 2; }
bool negative(int n) { return n < 0; }
}
"""
BROKEN = 'extern "C" int f(int n) {\n    return m;\n}\n'


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def bound(cache_folder, bind_kit, monkeypatch):
    monkeypatch.setenv("RINGSMITH_CACHE", str(cache_folder))
    return bind_kit(f'"""A candidate."""\nSOURCE = r"""{ADD}"""\nOTHER = """{BROKEN}"""\n')


@pytest.fixture
def compilations(monkeypatch):
    """Commands that were run, which really run."""
    seen, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: seen.append(command) or run(command, **options))
    return seen


def test_a_library_is_compiled_and_called(bound):
    lib = kit.build(ADD)
    a, b, out = torch.arange(5.0), torch.ones(5), torch.zeros(5)
    assert lib.add(a, b, out, out.numel()) is None
    assert out.tolist() == [1, 2, 3, 4, 5]
    lib.add(a.data_ptr(), b.data_ptr(), out[2:], 2)
    assert out.tolist() == [1, 2, 1, 2, 5], "an address or a view is as good as a tensor"
    assert lib.half(3.0) == 1.5 and lib.half(3) == 1.5
    assert lib.negative(-1) is True and lib.negative(1) is False
    assert bound.built == ["kit library (add, half, negative)"]


def test_the_second_build_does_not_compile(bound, compilations, cache_folder):
    source = ADD + "// the second build\n"
    kit.build(source)
    assert len(compilations) == 1
    assert kit.build(source).half(4.0) == 2.0
    assert len(compilations) == 1
    kit.build(source, flags=["-O1"])
    assert len(compilations) == 2, "other flags are another library"
    assert len(list((cache_folder / "kit").glob("*/kit.so"))) >= 2


def test_the_phase_is_building_only_while_it_builds(bound, monkeypatch):
    phases, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: phases.append(bound.progress.phase) or run(*a, **k))
    bound.progress.enter(Phase.loading)
    kit.build(ADD + "// phases\n")
    assert phases == [Phase.building] and bound.progress.phase is Phase.loading
    with pytest.raises(kit.BuildError):
        kit.build(BROKEN)
    assert bound.progress.phase is Phase.loading


def test_compiler_errors_name_the_lines_of_the_candidate(bound):
    line = bound.source[: bound.source.index("return m")].count("\n") + 1
    with pytest.raises(kit.BuildError) as caught:
        kit.build(BROKEN)
    text = str(caught.value)
    assert f"candidate.py:{line}:" in text and "error" in text and "was not declared" in text
    assert "/tmp" not in text and "ringsmith" not in text.lower()
    assert classify_error(describe_error(caught.value)) is Verdict.compile_error


def test_a_source_put_together_at_run_time_is_called_so(bound):
    with pytest.raises(kit.BuildError, match=r"kit source:3:"):
        kit.build("\n" + BROKEN)


def test_a_failed_build_is_not_remembered(bound, compilations):
    for _ in range(2):
        with pytest.raises(kit.BuildError):
            kit.build(BROKEN)
    assert len(compilations) == 2 and bound.built == []


def test_a_library_that_does_not_link_is_a_build_error(bound):
    with pytest.raises(kit.BuildError, match="elsewhere"):
        kit.build('extern "C" int elsewhere(int);\nextern "C" int f(int n) { return elsewhere(n); }')


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lib, x: lib.add(x, x, x), "add(const float* a, const float* b, float* out, int64_t n) takes 4"),
        (lambda lib, x: lib.half(), "half(double x) takes 1 arguments, not 0"),
        (lambda lib, x: lib.add(x, x, x, 1.5), "argument 4 (int64_t n) cannot be made from a float"),
        (lambda lib, x: lib.add(x, "x" * 3, [1.0], 3), "argument 3 (float* out) cannot be made from a list"),
        (lambda lib, x: lib.half("3"), "argument 1 (double x) cannot be made from a str"),
        (lambda lib, x: lib.half(x), "argument 1 (double x) cannot be made from a Tensor"),
        (lambda lib, x: lib.add(x, x, x, x.sum()), "argument 4 (int64_t n) cannot be made from a Tensor"),
        (lambda lib, x: lib.add(x, x, x, None), "argument 4 (int64_t n) cannot be made from a NoneType"),
    ],
)
def test_wrong_arguments_are_explained(bound, call, message):
    with pytest.raises(TypeError) as caught:
        call(kit.build(ADD), torch.ones(3))
    assert message in str(caught.value)
    assert classify_error(describe_error(caught.value)) is Verdict.api_error


def test_an_unknown_function_is_refused_with_those_there_are(bound):
    with pytest.raises(AttributeError, match=r"no extern \"C\" function 'sub'; it has: add, half, negative"):
        kit.build(ADD).sub(1)


def test_a_function_that_the_preprocessor_removed_is_explained(bound):
    lib = kit.build('#if 0\nextern "C" void gone(int n) {}\n#endif\nextern "C" int f() { return 7; }')
    assert lib.f() == 7
    with pytest.raises(kit.KitError, match="gone is not in the compiled library") as caught:
        lib.gone(1)
    assert ".so" not in str(caught.value)


def test_a_cuda_error_left_behind_is_raised(bound):
    lib = kit.build(
        '#include <cstring>\nextern "C" int rs_last_error(char* text, int size) {\n'
        '    strncpy(text, "invalid argument", size); return 1;\n}\nextern "C" void launch(int n) {}'
    )
    with pytest.raises(RuntimeError, match="launch: CUDA error: invalid argument"):
        lib.launch(1)


def test_calls_show_up_in_a_profile(bound):
    lib = kit.build(ADD)
    bound.profiling = True
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        lib.half(1.0)
    assert "kit::half" in {event.key for event in profiler.key_averages()}


def test_the_header_is_found(bound):
    lib = kit.build('#include "ringsmith.h"\nextern "C" int ranks() { return RS_MAX_RANKS; }')
    assert lib.ranks() == 16


def test_wrong_uses_are_told_apart(bound, monkeypatch):
    with pytest.raises(kit.KitError, match="source text, not bytes"):
        kit.build(b"int x;")
    bound.device = None
    with pytest.raises(kit.KitError, match=r"inside solution\(\)"):
        kit.symmetric(4, torch.float32)
    monkeypatch.setattr(kit, "_state", None)
    for use in (kit.rank, kit.world_size, kit.stream, lambda: kit.build(ADD)):
        with pytest.raises(kit.KitError, match="ringsmith eval"):
            use()


def test_rank_and_world_size_are_those_bound(bound):
    assert (kit.rank(), kit.world_size(), kit.stream()) == (0, 1, 0)


@pytest.mark.parametrize(
    "stage",
    [
        "kill -9 $$",
        "echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1",
        "echo 'collect2: fatal error: ld terminated with signal 9 [Killed]'; exit 1",
        "echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\"; exit 9",
    ],
)
def test_a_compiler_that_is_killed_says_nothing_about_the_source(bound, tmp_path, monkeypatch, stage):
    """Once: it is run again. Twice: it is killed for what the source asks of it."""
    real = shutil.which("g++")
    wrapper, log = tmp_path / "g++", tmp_path / "log"
    wrapper.write_text(f'#!/bin/sh\necho >>{log}\n[ $(wc -l <{log}) -gt $KILLS ] && exec {real} "$@"\n{stage}\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("KILLS", "1")
    assert kit.build(f'extern "C" int n() {{ return {len(stage)}; }}').n() == len(stage)
    log.unlink()
    monkeypatch.setenv("KILLS", "2")
    with pytest.raises(kit.BuildError):
        kit.build(f'extern "C" int n() {{ return {-len(stage)}; }}')
