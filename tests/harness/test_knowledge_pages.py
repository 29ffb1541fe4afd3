"""Pages must not send a model after names that do not exist or code that does not compile."""

import ast
import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import built, kit_header, machine, policy
from harness.runtime_causes import KIT_NAMES
from harness.types import BACKENDS, Backend, Verdict
from tools import catalogue, pages

PROJECT = Path(__file__).resolve().parents[2]
FILES = sorted((PROJECT / "prompts" / "knowledge").glob("*.md"))
LINES, COLUMNS = 70, 120
try:
    NCCL = list(importlib.import_module("nvidia.nccl").__path__)
except ImportError:
    NCCL = []
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
USED_TOOLS = {"read", "compile", "run_benchmark", "inspect_failure", "profile"}


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of each code block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.S | re.M)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def complete() -> list[tuple[str, str]]:
    """Page and content of each block of CUDA that is a whole source. Fragments have neither kernel nor launcher."""
    return [
        (path.stem, code)
        for path in FILES
        for language, code in blocks(path.read_text())
        if language == "cuda" and ("__global__" in code or 'extern "C"' in code)
    ]


def compiled(file: Path, *flags: str) -> Path:
    """The PTX; ptxas has accepted it too, which alone knows inline assembly."""
    command = ["nvcc", "-cubin", "-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a"]
    command += [f"-I{PROJECT / 'harness' / 'include'}", *flags, *built.keep_ptx(file.parent / "ptx")]
    done = subprocess.run([*command, str(file), "-o", str(file.with_suffix(".cubin"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return file.parent / "ptx" / f"{file.stem}.ptx"


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def page(request) -> str:
    return request.param.read_text()


def test_a_page_is_a_screen_or_two_and_says_for_whom_it_is(page):
    first, heading, *rest = page.splitlines()
    names = first.removeprefix("Backends: ").split(", ")
    assert set(names) <= set(Backend) and "reference" not in names
    assert re.fullmatch(r"# \w[\w ]*: .{20,}", heading)
    assert len(rest) < LINES
    assert not [line for line in page.splitlines() if len(line) > COLUMNS]


def test_no_page_has_the_name_of_something_else_that_is_read():
    for backend in (backend for platform in BACKENDS.values() for backend in platform):
        names = [*pages.pages(backend), *pages.examples(backend, 0)]
        assert len(set(names)) == len(names)
        assert not {"candidate", "reference", "attempts", "header", "pages", "examples"} & set(names)
    assert len(pages.pages("cuda")) == len(FILES)


def test_what_a_page_names_exists(page):
    causes = "\n".join(path.read_text() for path in (PROJECT / "harness").glob("*.py"))
    text = " ".join(prose(page).split())
    for cause in re.findall(r"\*([^*]+)\*", re.sub(r"`[^`]*`", "", text)):
        assert f'"{cause}"' in causes, cause
    for name in re.findall(r"\brs_\w+", page):
        assert re.search(rf"\b{name}\b", kit_header()), name
    for name in re.findall(r"\bkit\.(\w+)", page):
        assert name in KIT_NAMES["harness.kit"], name
    for name in re.findall(r"\bbuf\.(\w+)", page):
        assert name in KIT_NAMES["SymmetricBuffer"], name
    backends = page.splitlines()[0].removeprefix("Backends: ").split(", ")
    for name in re.findall(r"\bpage `([^`]+)`", text):
        assert all(name in pages.pages(backend) for backend in backends), name


def test_tools_and_verdicts_are_those_that_there_are():
    assert set(catalogue.TOOLS) >= USED_TOOLS
    named = re.findall(r"^- `(\w+)`:", (PROJECT / "prompts" / "knowledge" / "debugging.md").read_text(), re.M)
    assert sorted(named) == sorted(set(Verdict) - {Verdict.passed})


def test_what_this_host_forbids_is_named_only_to_say_so(page):
    for _, code in blocks(page):
        assert policy.violation(f"SOURCE = r'''{code}'''") is None
    for paragraph in re.split(r"\n(?=\n|- |\|)", page):
        if re.search(r"multicast|multimem|NVLS", paragraph):
            assert re.search(r"\boff\b|forbidden|without|no multicast|refuse", paragraph), paragraph


def test_python_parses(page):
    assert {language for language, _ in blocks(page)} <= {"cuda", "python"}
    for language, code in blocks(page):
        if language == "python":
            ast.parse(code)


@needs_nvcc
def test_complete_cuda_compiles(tmp_path):
    """All in one translation unit, which costs a tenth of one each."""
    whole = [(name, code) for name, code in complete() if "nccl_device.h" not in code]
    assert {name for name, _ in whole} >= {"mechanisms", "barriers", "flags"}
    include = '#include "ringsmith.h"\n'
    assert all(code.count("#include") == 1 and code.startswith(include) for _, code in whole)
    source = include
    for number, (name, code) in enumerate(whole):
        source += f'#line 1 "{name}"\nnamespace block_{number} {{\n{code.removeprefix(include)}}}\n'
    file = tmp_path / "pages.cu"
    file.write_text(source)
    compiled(file, "-Werror", "all-warnings")


@needs_nvcc
@pytest.mark.skipif(not NCCL, reason="no NCCL headers here")
def test_the_nccl_example_compiles_and_has_no_multicast(tmp_path):
    file = tmp_path / "page.cu"
    ((_, source),) = ((name, code) for name, code in complete() if "nccl_device.h" in code)
    file.write_text(source)
    policy.check_object(compiled(file, f"-I{NCCL[0]}/include"))


@needs_nvcc
@pytest.mark.skipif(machine.KITTENS_VARIABLE not in os.environ, reason="no ThunderKittens here")
def test_the_parallelkittens_example_compiles_and_has_no_multicast(tmp_path):
    text = (PROJECT / "prompts" / "backends" / "parallelkittens.md").read_text()
    ((_, example),) = blocks(text)
    (source,) = re.findall(r'SOURCE = r"""(.*?)"""', example, re.S)
    (flags,) = re.findall(r"^FLAGS = (.*)$", example, re.M)
    file = tmp_path / "page.cu"
    file.write_text(source)
    include = f"-I{os.environ[machine.KITTENS_VARIABLE]}/include"
    policy.check_object(compiled(file, *ast.literal_eval(flags), include, "-DKITTENS_HOPPER", "-DRANKS=4"))
