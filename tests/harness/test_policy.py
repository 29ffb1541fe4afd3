"""The static gate on sources and on what compilers made of them."""

import contextlib
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from harness import built, compiler, kit, policy, torch_build
from harness.code_text import pieces
from harness.platforms.cuda import Cuda
from harness.policy import PolicyError, allowed, check_object, names_nccl, violation

FORBIDDEN = [
    ("x = 1\ny = 'cuMulticastCreate'\n", 2, "cuMulticastCreate", "multicast"),
    ('SOURCE = """\n\nasm("multimem.ld_reduce.add.f32")\n"""', 3, "multimem.ld_reduce.add.f32", "multicast"),
    ("CU_MULTICAST_GRANULARITY_MINIMUM", 1, "CU_MULTICAST_GRANULARITY_MINIMUM", "multicast"),
    ("torch.ops.symm_mem.multimem_all_reduce_(x, 'sum', g)", 1, "multimem_all_reduce_", "multicast"),
    ("a = (\n handle\n .multicast_ptr)", 3, "multicast_ptr", "multicast"),
    ("K = '''void* p = nvshmemx_mc_ptr(team, q);'''", 1, "nvshmemx_mc_ptr", "multicast"),
    ("K = '''ncclGetLsaMultimemPointer(w, 0, c)'''", 1, "ncclGetLsaMultimemPointer", "multicast"),
    ("os.environ['NCCL_NVLS_ENABLE'] = '1'", 1, "NCCL_NVLS_ENABLE", "multicast"),
    (f"os.environ['{policy.ALLOW_VARIABLE}'] = 'multicast'", 1, policy.ALLOW_VARIABLE, "multicast"),
    ("\n\npynvml.nvmlDeviceSetGpuLockedClocks(h, 1, 2)", 3, "nvmlDeviceSetGpuLockedClocks", "settings"),
    ("from pynvml import nvmlDeviceSetPowerManagementLimit as f", 1, "nvmlDeviceSetPowerManagementLimit", "settings"),
    ("nvmlDeviceResetApplicationsClocks(h)", 1, "nvmlDeviceResetApplicationsClocks", "settings"),
    ("os.system('nvidia-smi -lgc 1500')", 1, "nvidia-smi -lgc", "settings"),
    ("os.system('nvidia-smi -i 0 --power-limit=200')", 1, "nvidia-smi -i 0 --power-limit", "settings"),
    ("run(['nvidia-smi',\n '-lgc', str(f)])", 1, "nvidia-smi -lgc", "settings"),
    ("run(('/usr/bin/nvidia-smi', '-i', '0', '--gpu-reset'))", 1, "nvidia-smi -i 0 --gpu-reset", "settings"),
    ("os.execlp('nvidia-smi', 'nvidia-smi', '-r')", 1, "nvidia-smi nvidia-smi -r", "settings"),
]
HIDDEN = {
    "adjacent literals": "f('cuMul' 'ticastCreate')",
    "sum": "f('cuMul' + 'ticast' + 'Create')",
    "sum with something else": "f(prefix + 'cuMul' + 'ticastCreate')",
    "join": "f(''.join(['cuMulti', 'castCreate']))",
    "long sum": "f(" + "'a ' + " * 2000 + "'cuMul' + 'ticastCreate')",
    "f-string": "f(f'{unknown} cu{\"Multi\"}castCreate')",
    "bytes": "ctypes.CDLL('libcuda.so')[b'cuMulticastCreate']",
    "argument of an f-string": "f(f'{handle.multicast_ptr}')",
    "after an escape": "K = r'''asm(\"mov.u32 a, b;\\n\\tmultimem.red.add.f32 [a], b;\")'''",
    "literals of C": "K = '''asm(\"multi\"\n    \"mem.st [a], b;\");'''",
    "continued line": "K = r'''asm(\"multi\\\nmem.st [a], b;\");'''",
    "pasted": "K = '''\n#define A cu##Multicast##Create\n'''",
    "macro that pastes": "K = '''\n#define CAT(a, b) a ## b\nCAT(cuMulti, castCreate)(&h, &p);\n'''",
    "macro with half a name": "K = '''\n#define CU(x) cuMulti ## x\nCU(castCreate)(&h, &p);\n'''",
    "address before it": "K = '''// see https://a.b\nconst char* a = \"http://c\"; multimem.st'''",
    "another encoding": "# -*- coding: utf-7 -*-\n# +AAo-cuMulticastCreate(h)\n",
    "docstring that is read": '"""\ncuMulticastCreate(&h, &p);\n"""\nkit.build(__doc__)\n',
    "no Python": "def f(:\n  cuMulticastCreate(h)",
    "hashes before a quote": "def f(:\nx" + " # " * 80_000 + "cuMulticastCreate'",
    "behind an unclosed quote": "K = r'''\n#error 5\" // multimem.st\n'''",
    "behind an unclosed apostrophe": "K = r'''\n#error (' // multimem.st)\n'''",
    "behind an unclosed raw string": "K = r'''R\"x( // multimem.st\n)y\"'''",
    "behind many escaped quotes": "K = r'''\"" + '\\"' * 60_000 + " // multimem.st'''",
    "below an unclosed quote": "K = r'''\n#if 0\n5\" /*\n#endif\nmultimem.st\n/* */'''",
    "below an unclosed apostrophe": "K = r'''\n#if 0\ndon't /*\n#endif\nmultimem.st\n/* */'''",
    "between characters": 'K = r"""int a = \'/*\'; asm("multimem.st"); int b = \'*/\';"""',
    "beside a long separator": f"f('{'a' * 250_000}'.join(['multimem.st', 'b']))",
}
ORDINARY = {
    "nothing": "",
    "collective": "import torch.distributed as dist\ndef solution(x):\n    dist.all_reduce(x)\n    return x\n",
    "reading": "nvmlDeviceGetCount()",
    "comment": "# no multimem, no cuMulticastCreate here; nvidia-smi -r is forbidden\n",
    "docstring": '"""Without multimem."""\ndef f():\n    """Nor cuMulticastCreate."""\n',
    "string as a comment": 'x = 1\n"""multimem would be faster"""\n',
    "comment of C": "K = '''\n// multimem.st\nint a; /* cuMulticastCreate,\n multimem */ int b;\n'''",
    "comment, no Python": "def f(:\n# multimem\n    x = 1  # multimem\n",
    "comment behind quotes": "K = r'''a = \"\\\"\"; b = '\"'; c = '\\''; // multimem.st'''",
    "comment behind a number": "K = \"a = 1'000 + 0xF'F.5 + 1'0; // don't multimem.st\"",
    "comment of many hashes, no Python": 'def f(:\n"x" ' + " # " * 80_000 + "multimem",
    "similar words": "cudaMemcpyPeerAsync(a, 0, b, 1, n, s); __multi(3); mul_mem = 3; use_multimem = False",
    "question": "if not handle.has_multicast_support(kind, 0): pass",
    "multicast within a cluster": "K = 'cp.async.bulk.tensor.2d.shared::cluster.global.tile.multicast::cluster'",
    "smi asked": "os.system('nvidia-smi -q -i 0 -d CLOCK'); run(['nvidia-smi', '--query-gpu=clocks.sm', '-l', '1'])",
    "smi counting": "os.system('nvidia-smi dmon -c 1 -s p'); run(['nvidia-smi', 'topo', '-p', '-i', '0'])",
    "smi and others": "os.system('nvidia-smi -L; ls -r')",
    "null byte": "x = '\\0'\0",
    "deep": "x = " + "+".join(["'a'"] * 20000),
    "invalid escape": "x = '\\d'",
}


@pytest.mark.parametrize(("source", "line", "name", "why"), FORBIDDEN, ids=lambda v: str(v)[:20])
def test_a_forbidden_feature_is_named_with_its_line(source, line, name, why):
    reason = violation(source)
    assert f"line {line} names {name!r}" in reason and why in reason and "\n" not in reason


@pytest.mark.parametrize("source", HIDDEN.values(), ids=HIDDEN)
def test_a_name_in_parts_is_found(source):
    assert "multicast" in violation(source)


@pytest.mark.parametrize("source", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_sources_pass(source):
    assert violation(source) is None


def test_the_line_is_right_below_a_macro_of_several_lines():
    source = "x = 1\nK = r'''\n#define A \\\n  1\n/* two\nlines */\nmultimem.st\n'''\n"
    assert "line 7 " in violation(source)


def test_the_first_of_several_is_named():
    assert "line 2 names 'multicast_ptr'" in violation("x\ny.multicast_ptr\nz = 'cuMulticastCreate'")


GROWING = {
    "macros": "\n".join(f"#define A{i}(x) A{i + 1}(x)##A{i + 1}(x)" for i in range(99)) + "\nA0(y)",
    "raw strings": 'R"(' * 80_000,
    "continued": "\\\n" * 60_000,
    "long line": "a" * 250_000,
    "comments": "/*" * 100_000,
    "smi": "nvidia-smi a " * 19_000,
}


@pytest.mark.parametrize("text", GROWING.values(), ids=GROWING)
def test_no_source_takes_the_supervisor_long(text):
    # The slowest takes two seconds; what is meant is hours.
    before = time.process_time()
    assert violation(f"K = r'''{text}'''") is None
    assert violation(f"K = '{'a' * 100_000}'.join([{text.count(chr(10)) * '1,'}])") is None
    assert time.process_time() - before < 60


def test_a_source_that_takes_python_itself_long_is_not_read():
    before = time.process_time()
    source = "a = 1\nT = f'" + "{a}" * 400_000 + "'\nimport nccl4py\n"
    assert violation(source) == f"the source has {len(source)} bytes; at most 262144 are read"
    assert names_nccl(source) is None
    assert time.process_time() - before < 30


MACROS = [f"#define C{i}(x) C{i + 1}(x)##abc\n" for i in range(98)]
FLOOD = f"#define A(x) {'B(x) ' * 16}##x\n#define B(x) {'C0(x) ' * 8}##\n{''.join(MACROS)}{'A(a)' * 1250}"


def test_all_macros_and_separators_of_a_source_share_what_they_may_add():
    source = "".join(f"K{i} = r'''{FLOOD}'''\n" for i in range(12))
    assert sum(len(piece.text) for piece in pieces(source)) < 2 * len(source) + 1_100_000
    source = f"f('{'a' * 990}'.join([{'1,' * 990}]))\n" * 300
    assert sum(len(piece.text) for piece in pieces(source)) < 2 * len(source) + 1_100_000


def test_macros_of_many_strings_are_filled_in():
    macro = "#define CAT(a, b) a ## b\n"
    source = "".join(f"K{i} = '''{macro}{'CAT(x, y) ' * 100}CAT(left{i}, right)'''\n" for i in range(200))
    texts = " ".join(piece.text for piece in pieces(source))
    assert all(f"left{i}right" in texts for i in range(200))


def test_the_operator_can_allow_multicast_but_no_settings(monkeypatch):
    allow = frozenset({"multicast"})
    assert violation("cuMulticastCreate; os.environ['NCCL_NVLS_ENABLE']", allow) is None
    assert "settings" in violation("nvmlDeviceSetPowerManagementLimit(h)", allow)
    monkeypatch.delenv(policy.ALLOW_VARIABLE, raising=False)
    assert allowed() == frozenset()
    monkeypatch.setenv(policy.ALLOW_VARIABLE, "settings, multicast")
    assert allowed() == allow


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("ctypes.CDLL('libnccl.so.2')", "libnccl"),
        ("kit.build('''ncclAllReduce(a, b, n, t, o, c, s);''')", "ncclAllReduce"),
        ("kit.build(SOURCE, ['-lnccl'])", "-lnccl"),
        ("from torch.cuda import nccl", "torch.cuda.nccl"),
        ("K = '#include <nccl.h>'", "nccl.h"),
        ("import torch\ntorch.cuda.nccl.all_reduce(x)", "torch.cuda.nccl"),
        ("import torch.cuda.nccl as n", "torch.cuda.nccl"),
        ("dist.all_reduce(x)  # NCCL's, unlike ncclAllReduce", None),
        ("'''// ncclAllReduce does it slower'''", None),
    ],
)
def test_direct_use_of_nccl_is_named(source, named):
    found = names_nccl(source)
    assert (named in found) if named else found is None


def test_the_examples_pass():
    examples = list((Path(__file__).parents[2] / "prompts" / "examples").glob("*/*.py"))
    assert examples
    for path in examples:
        assert violation(path.read_text()) is None, path.name


# -- built objects -----------------------------------------------------------------------------------------------------

HOST = 'extern "C" const char* name() { return "%s"; }\n'
DEVICE = """
extern "C" __global__ void add(float* from, float* to) {
    float value;
    asm volatile("%s %%0, [%%1];" : "=f"(value) : "l"(from));
    *to = value;
}
extern "C" void go(float* a, float* b) { add<<<1, 1>>>(a, b); }
"""
needs_gxx = pytest.mark.skipif(not shutil.which("g++"), reason="g++ is missing")
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is missing")


def compiled(folder: Path, source: str) -> Path:
    (folder / "a.cpp").write_text(source)
    subprocess.run(["g++", "-shared", "-fPIC", folder / "a.cpp", "-o", folder / "a.so"], check=True)
    return folder / "a.so"


@needs_gxx
@pytest.mark.parametrize(
    ("source", "name"),
    [
        (HOST % "cuMulticastCreate", "cuMulticastCreate"),
        (HOST % "nvidia-smi -i 0 -pl 200", "nvidia-smi -i 0 -pl"),
        (HOST % "NCCL_NVLS_ENABLE", "NCCL_NVLS_ENABLE"),
        ('extern "C" int nvmlDeviceSetPersistenceMode(void*, int);\nint f() {'
         " return nvmlDeviceSetPersistenceMode(0, 1); }", "nvmlDeviceSetPersistenceMode"),
        ("// cuMulticastCreate, multimem.st\n" + HOST % "a multimem is multicast_ptr", None),
    ],
)  # fmt: skip
def test_a_library_is_judged_by_its_strings_and_symbols(source, name, tmp_path):
    path = compiled(tmp_path, source)
    if name is None:
        return check_object(path)
    with pytest.raises(PolicyError, match=name):
        check_object(path)


@needs_gxx
def test_what_is_allowed_is_let_through(tmp_path):
    path = compiled(tmp_path, HOST % "cuMulticastCreate")
    check_object(path, allow=frozenset({"multicast"}))


@needs_nvcc
@pytest.mark.parametrize(
    ("instruction", "wrong"), [("multimem.ld_reduce.relaxed.sys.global.add.f32", True), ("ld.global.f32", False)]
)
def test_ptx_is_judged_though_the_library_hides_it(instruction, wrong, tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSMITH_CUDA_ARCH", "90")
    source, library = tmp_path / "k.cu", tmp_path / "k.so"
    source.write_text(DEVICE % instruction)
    command = Cuda().compile_command(source, library, ["-Xfatbin", "-compress-all"])
    code, output = compiler.run([*command, *built.keep_ptx(tmp_path / "ptx")])
    assert code == 0, output
    check_object(library)  # by itself it says nothing
    if wrong:
        with pytest.raises(PolicyError, match=instruction):
            built.check(library, frozenset())
    else:
        built.check(library, frozenset())
    assert not (tmp_path / "ptx").exists()


@needs_nvcc
@pytest.mark.parametrize("slim", [True, False])
def test_an_extension_keeps_its_ptx_until_it_is_judged(slim, tmp_path):
    source = tmp_path / "cuda.cu"
    source.write_text(DEVICE % "multimem.ld_reduce.relaxed.sys.global.add.f32")
    flags = ["-gencode", "arch=compute_90a,code=sm_90a", "-Xcompiler", "-fPIC"]
    command = ("nvcc", *flags, "-c", str(source), "-o", "cuda.o")
    unit = torch_build.Unit("", source, command, source.read_text(), (), complete=True)
    with contextlib.closing(torch_build._Processes(tmp_path)) as processes:
        torch_build._compile(processes, unit, slim=slim)
    check_object(tmp_path / "cuda.o")  # by itself it says nothing
    with pytest.raises(PolicyError, match=r"multimem\.ld_reduce"):
        built.check(tmp_path / "cuda.o", frozenset())


@needs_nvcc
def test_the_assembler_names_no_folder_of_ours(tmp_path, bind_kit, monkeypatch):
    monkeypatch.setenv("RINGSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RINGSMITH_CUDA_ARCH", "90")
    bind_kit("").platform = Cuda()
    with pytest.raises(kit.BuildError) as caught:
        kit.build(DEVICE % "ld.nonsense.f32")
    assert "ptxas ptx/kit.ptx, line" in str(caught.value) and str(tmp_path) not in str(caught.value)
