"""Known causes, on what compilers, Python and torch really say."""

import shutil
import time
from pathlib import Path

import pytest

from harness import causes, kit
from harness.candidate_rank import import_candidate
from harness.cause_rules import Rule, find
from harness.compiler_log import errors, shorten, triton_error
from harness.diagnosis import judge_failure
from harness.outcomes import Outcome, RankOutcome
from harness.rank import describe_error
from harness.runtime_causes import KIT_NAMES
from harness.types import Finding, RankReport, Stage, Verdict
from tests import compiler_logs

LOGS = Path(__file__).parent / "logs"


def compile_finding(log: str, candidate: str) -> Finding:
    (found,) = causes.explain(Verdict.compile_error, "compiler: something", log, (), candidate)
    assert len(found.evidence) < 350 and "\n" not in found.evidence + found.text
    assert found.certain or "probably" in found.text
    return found


# ---------------------------------------------------------------------------------------------------------------------
# nvcc: recorded, and some compiled again

# name of the record: (cause, line of its source, something that the sentence says)
CUDA = {
    "bf16_header": ("missing header", 2, "`__nv_bfloat16` needs `#include <cuda_bf16.h>`"),
    "half_header": ("missing header", 1, "`#include <cuda_fp16.h>`"),
    "barrier_header": ("missing header", 1, "`cuda::barrier` needs `#include <cuda/barrier>`"),
    "cg_header": ("missing header", 1, "`#include <cooperative_groups.h>`"),
    "cuda_atomic_ref": ("missing header", 1, "`#include <cuda/atomic>`"),
    "std_vector": ("missing header", 1, "`std::vector` needs `#include <vector>`"),
    "wmma": ("missing header", 1, "`#include <mma.h>`"),
    "tensormap": ("missing header", 1, "`#include <cuda.h>`"),
    "goto_printf": ("missing header", 1, "`#include <cstdio>`"),
    "no_header_rs": ("missing header", 1, '`#include "ringsmith.h"`'),
    "no_file": ("header not here", 1, "cutlass/cutlass.h"),
    "torch_h": ("torch header", 1, "load_inline"),
    "at_ns": ("torch header", 1, "kit.stream()"),
    "extern_device": ("undefined symbol", 2, "`g`"),
    "setmaxnreg_90": ("target without a", 1, "sm_90a"),
    "wgmma_90": ("target without a", 1, "`wgmma.fence` needs the target sm_90a, not sm_90"),
    "bulk_80": ("wrong target", 1, "cp.async.bulk"),
    "multimem": ("wrong target", 1, "multimem.ld_reduce"),
    "tcgen05": ("wrong target", 1, "tcgen05.fence"),
    "asm_operands": ("asm operands", 1, "`ld`"),
    "asm_missing_operand": ("asm operands", 1, "`atom`"),
    "asm_number": ("asm operands", 1, "numbered from 0"),
    "asm_constraint": ("asm operand type", 1, '"l" 64'),
    "asm_type": ("asm operand type", 1, "element by element"),
    "asm_unknown": ("asm syntax", 1, "`.system`"),
    "asm_unknown2": ("asm syntax", 1, "`store`"),
    "shared_static": ("shared memory", 1, "declares 262144 bytes of __shared__ memory and 232448 is the most"),
    "bf16_add_ambig": ("16-bit arithmetic", 2, "__bfloat162float"),
    "bf16_no_op": ("16-bit arithmetic", 2, "__nv_bfloat162"),
    "bf16_ternary": ("16-bit arithmetic", 2, "compute in float"),
    "bf16_ptr": ("pointer type", 3, "convert the elements"),
    "atomic_i64": ("atomic type", 2, "(int64_t *, int64_t)"),
    "void_ptr": ("missing cast", 1, "const void* into const float *"),
    "launch_types": ("missing cast", 2, "float *const *"),
    "min_mixed": ("mixed min/max", 3, "(int64_t, int)"),
    "semicolon": ("syntax", 2, "the line before"),
    "brace": ("unclosed brace", 1, "never closed"),
    "typo": ("undeclared name", 1, "`nblock` is not declared where it is used; did you mean `nblocks`?"),
    "typo_header": ("undeclared name", 2, "did you mean `rs_barrier_block`?"),
    "cudaErr": ("undeclared name", 1, "`cudaMemcpyPeerASync`"),
    "args_header": ("wrong argument count", 2, "too few"),
    "launch_args": ("wrong argument count", 2, "too few"),
    "types_header": ("type mismatch", 2, "int64_t * is given where uint32_t *const * is wanted"),
    "stream_type2": ("type mismatch", 2, "cudaStream_t"),
    "host_from_device": ("host call in kernel", 2, "g(int)"),
    "device_from_host": ("device call on host", 2, "g(int)"),
    "shared_redecl": ("shared redeclared", 1, "unsigned char"),
    "global_unconfigured": ("launch without <<<>>>", 2, "<<<blocks"),
    "vla": ("dynamic shared size", 1, "third launch parameter"),
    "extern_c_template": ('template in extern "C"', 2, "launchers"),
    "extern_c_overload": ('overload in extern "C"', 2, "`f`"),
    "redefinition": ("defined twice", 2, "`k`"),
    "const_discard": ("const", 1, "const float *"),
    "const_write": ("const", 1, "must not be const"),
    "no_member": ("no such member", 2, "S has no member `b`"),
    "static_assert": ("static assertion", 1, ""),
    "template_deep": ("other compile error", 4, ""),
}


def test_every_record_of_nvcc_is_tested():
    assert {*CUDA, "nonraw"} == set(compiler_logs.read())


@pytest.mark.parametrize("name", CUDA)
def test_what_nvcc_says(name):
    recorded = compiler_logs.read()[name]
    cause, line, said = CUDA[name]
    found = compile_finding(recorded.log, recorded.candidate)
    assert (found.cause, found.certain) == (cause, True), found
    assert said in found.text and found.text.endswith(f" (line {compiler_logs.FIRST_LINE + line - 1})"), found


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is missing")
@pytest.mark.parametrize("name", ["bf16_header", "wgmma_90", "asm_missing_operand", "shared_static"])
def test_what_nvcc_says_here(name):
    recorded = compiler_logs.read()[name]
    found = compile_finding(compiler_logs.compile_cuda(recorded), recorded.candidate)
    assert (found.cause, found.certain) == (CUDA[name][0], True)


def test_a_newline_that_python_made_is_inferred():
    recorded = compiler_logs.read()["nonraw"]
    source = 'SOURCE = """\n#include <cstdio>\nextern "C" void f() { printf("hello\\n"); }\n"""\n'
    found = compile_finding(recorded.log, source)
    assert (found.cause, found.certain) == ("unescaped newline", False) and 'r"""' in found.text
    assert compile_finding(recorded.log, source.replace('"""', 'r"""', 1)).cause == "unescaped newline"
    assert compile_finding(recorded.log, source.replace('"""', "'")).cause == "unclosed string"


def test_the_header_that_is_there_is_not_said_to_be_missing():
    recorded = compiler_logs.read()["bf16_header"]
    assert compile_finding(recorded.log, "#include <cuda_bf16.h>\n" + recorded.candidate).cause == "undeclared name"


# ---------------------------------------------------------------------------------------------------------------------
# load_inline and Triton: recorded, since they take half a minute or are not here

INLINE = {
    "signature_mismatch": ("undefined symbol", None, "`scale` is declared and used but nowhere defined"),
    "undeclared_function": ("function not declared", None, "`scales` is in `functions=`"),
    "data_ptr_symbol": ("data_ptr type", None, "reinterpret_cast<__nv_bfloat16*>(x.data_ptr())"),
    "data_ptr_type": ("data_ptr type", 5, "BFloat16*"),
    "no_module": ("no module", None, "PYBIND11_MODULE"),
    "stream_header": ("missing header", 1, "`#include <ATen/cuda/CUDAContext.h>`"),
    "stream_header_cuda": ("missing header", 1, "`#include <ATen/cuda/CUDAContext.h>`"),
    "wgmma_arch": ("target without a", 1, "load_inline"),
}
TRITON = {
    "bad_name": ("no such name", 8, "`lod` does not exist in triton.language"),
    "undefined": ("undeclared name", 8, "`y`"),
    "not_pow2": ("Triton range", 7, "powers of 2"),
    "not_constexpr": ("Triton range", 7, "tl.constexpr"),
    "shapes": ("Triton shapes", 8, "different shapes"),
    "dot": ("Triton shapes", 8, "different shapes"),
    "kw": ("wrong arguments", 7, "`others`"),
    "ret": ("Triton syntax", 8, "Python's `Break`"),
    "glob": ("Triton global", 7, "`G`"),
    "types": ("Triton loop type", 9, "`acc`"),
}


@pytest.mark.parametrize("name", INLINE)
def test_what_load_inline_says(name):
    recorded = compiler_logs.read(LOGS / "load_inline.txt")[name]
    cause, line, said = INLINE[name]
    found = compile_finding(recorded.log, recorded.candidate + "load_inline(...)\n")
    assert (found.cause, found.certain) == (cause, True) and said in found.text, found
    assert (f"(line {compiler_logs.FIRST_LINE + line - 1})" if line else "(line") in found.text + "(line" * (not line)


@pytest.mark.parametrize("name", TRITON)
def test_what_triton_says(name):
    recorded = compiler_logs.read(LOGS / "triton.txt")[name]
    cause, line, said = TRITON[name]
    found = compile_finding(recorded.log, recorded.source)
    assert (found.cause, found.certain) == (cause, True) and said in found.text, found
    assert found.evidence.startswith(f"candidate.py:{line}: ")


@pytest.mark.parametrize("kernel", ["", "\n", "\nx"])
def test_a_triton_error_that_shows_no_kernel_has_no_line(kernel):
    """A candidate may raise any text as Triton's."""
    found = triton_error(f"at 1:1:\n{kernel}\n^\nnothing", "x = 1\n")
    assert found is not None and (found.message, found.line) == ("nothing", None)


def test_a_triton_error_is_a_compile_error_with_its_text():
    class CompilationError(Exception):
        pass

    recorded = compiler_logs.read(LOGS / "triton.txt")["not_pow2"]
    outcome = Outcome([RankOutcome(0, error=describe_error(CompilationError(recorded.log)))])
    verdict, summary, _ = judge_failure(outcome, Stage.correctness, [""])
    assert verdict is Verdict.compile_error and summary == "rank 0: Triton: arange's range must be a power of 2"


# ---------------------------------------------------------------------------------------------------------------------
# g++, as kit runs it

CPP = {
    'extern "C" int f(int n) {\n    std::vector<int> v(n);\n    return v.size();\n}': ("missing header", 2, "<vector>"),
    'extern "C" void f(char* a, char* b, int n) { std::memcpy(a, b, n); }': ("missing header", 1, "<cstring>"),
    'extern "C" void f(uint32_t* a) { a[0] = 1; }': ("missing header", 1, "`uint32_t` needs `#include <cstdint>`"),
    'extern "C" void f(char* a, int64_t n) { a[n] = 1; }': ("missing header", 1, "<cstdint>"),
    'extern "C" void f(float* x) { __m256 v = _mm256_loadu_ps(x); }': ("missing header", 1, "<immintrin.h>"),
    '__global__ void k(int* x) { x[0] = 1; }': ("CUDA in C++", 1, "g++"),
    '#include <cuda_runtime.h>\nextern "C" void f() {}': ("CUDA in C++", 1, "g++"),
    'extern "C" int f(int x) {\n    int i = 1\n    return i;\n}': ("syntax", 3, "the line before"),
    'extern "C" int f(int x) { if (x) { return 1;': ("unclosed brace", 1, "never closed"),
    'extern "C" int f(int nblocks) { return nblock; }': ("undeclared name", 1, "did you mean `nblocks`?"),
    '#include "ringsmith.h"\nextern "C" void f(uint32_t* const* s) { rs_barrier(s, 0, 2); }': (
        "wrong argument count", 2, "too few arguments for `void rs_barrier("),
    '#include "ringsmith.h"\nextern "C" void f(int64_t* s) { rs_barrier(s, 0, 2, 0); }': (
        "type mismatch", 2, "int64_t* is given where uint32_t* const* is wanted"),
    'extern "C" void f(const void* x) { const float* p = x; }': ("missing cast", 1, "cast it"),
    '#include <algorithm>\nextern "C" long f(long n) { return std::min(n, 5); }': (
        "mixed min/max", 2, "(long int&, int)"),
    'int g() { return 1; }\nint g() { return 2; }': ("defined twice", 2, "`int g()`"),
    'extern "C" void f(const float* x) { x[0] = 1; }': ("const", 1, "must not be const"),
    'struct S { int alpha; };\nextern "C" void f(S* s) { s->alpa = 1; }': (
        "no such member", 2, "did you mean `alpha`?"),
    'extern "C" int g(int);\nextern "C" int f(int x) { return g(x); }': ("undefined symbol", None, "`g`"),
    'extern "C" int f(int x) { return; }': ("other compile error", 1, ""),
    "#include <vector>\n#include <algorithm>\nstruct S { int a; };\n"
    'extern "C" void f(S* s, int n) {\n    std::vector<S> v(s, s + n);\n    std::sort(v.begin(), v.end());\n}': (
        "other compile error", 6, ""),
}  # fmt: skip


@pytest.fixture
def built(bind_kit, tmp_path, monkeypatch):
    """What kit.build says of a source in a candidate, and that candidate."""
    monkeypatch.setenv("RINGSMITH_CACHE", str(tmp_path / "cache"))

    def build(source: str, flags=(), quotes='r"""'):
        candidate = f'{"#" * 3}\n\nSOURCE = {quotes}{source}"""\n'
        bind_kit(candidate)
        with pytest.raises(kit.BuildError) as caught:
            kit.build(source, flags)
        return str(caught.value), candidate

    return build


@pytest.mark.parametrize("source", CPP)
def test_what_gcc_says(source, built):
    cause, line, said = CPP[source]
    found = compile_finding(*built(source))
    assert (found.cause, found.certain) == (cause, True) and said in found.text, found
    assert line is None or found.text.endswith(f" (line {line + 2})"), found
    assert "note" not in found.evidence and "required from" not in found.evidence


def test_what_gcc_says_of_flags(built):
    source = 'extern "C" void f() {}\n'
    assert compile_finding(*built(source, ["--no-such-option"])).cause == "compiler flag"
    openmp = '#include <omp.h>\nextern "C" int f() { return omp_get_max_threads(); }\n'
    assert "-fopenmp" in compile_finding(*built(openmp, ["-Wl,-z,defs"])).text
    assert compile_finding(*built(source, ["-lnosuchlib"])).text == "there is no library `nosuchlib` on this machine"


def test_a_launch_in_cpp_is_inferred(built):
    found = compile_finding(*built('void k(int* x);\nextern "C" void f(int* x) { k<<<1, 2>>>(x); }'))
    assert (found.cause, found.certain) == ("CUDA in C++", False)


# ---------------------------------------------------------------------------------------------------------------------
# Python, torch and kit: raised here

HEAD = "import torch\nimport torch.distributed as dist\nfrom harness import kit\n"
SYMM_MEM = "import torch.distributed._symmetric_memory as symm_mem\n"
ADD = 'LIB = kit.build(r"""extern "C" void add(const float* a, long n) {}\nvoid hidden() {}""")\n'
IMPORT = {
    "x = (1\n": ("Python syntax", "'(' was never closed"),
    'SOURCE = f"""int f() { return 1; }"""\n': ("braces in f-string", "double them"),
    'SOURCE = "\\xg"\n': ("unescaped backslash", 'r"""'),
    'SOURCE = """int f\n': ("unclosed string", "never closed"),
    'SOURCE = "int f() {{ }} {".format(1)\n': ("braces in format", ".replace()"),
    "def answer(x): ...\n": ("no solution", "`solution(*args)`"),
    "kit.symetric\n": ("no such name", "kit has no `symetric`; did you mean `symmetric`?"),
    "from harness.kit import biuld\n": ("no such name", "did you mean `build`?"),
    "torch.emtpy\n": ("no such name", "torch of this version has no `emtpy`; did you mean `empty`?"),
    "dist.get_word_size()\n": ("no such name", "torch.distributed of this version has no `get_word_size`; did you"),
    SYMM_MEM + "symm_mem.rendezvus\n": ("no such name", "did you mean `rendezvous`?"),
    "from torch.distributed import all_reduces\n": ("no such name", "did you mean `all_reduce`?"),
    "import flash_comm\n": ("no such module", "`flash_comm`"),
    "count = 1\nprint(cuont)\n": ("undeclared name", "`cuont` is not defined; did you mean `count`?"),
    "kit.symmetric((2,), torch.float32)\n": ("symmetric at import", "inside solution"),
    "kit.build(b'')\n": ("kit misused", "takes the source text, not bytes"),
    "kit.build('extern \"C\" void f(std::vector<int> x) {}')\n": ('extern "C" type', "take pointers"),
    ADD + "LIB.hidden()\n": ('missing extern "C"', "`hidden` is not an extern"),
    ADD + "LIB.add(1)\n": ("wrong argument count", "add takes 2 arguments, not 1: const float* a, long n"),
    ADD + "LIB.add(1, 1.5)\n": ("wrong argument type", "argument 2 of add is `long n` and was given a float"),
    "kit.build('', flag=[])\n": ("wrong arguments", "got an unexpected keyword argument 'flag'"),
    SYMM_MEM + "symm_mem.rendezvous(torch.ones(2))\n": ("wrong arguments", "missing 1 required"),
    "dist.get_rank()\n": ("process group", "inside solution"),
}  # fmt: skip
CALL = {
    "x @ x": ("shapes", "(2x3 and 2x3)"),
    "x.copy_(torch.ones(4, 5))": ("shapes", "(3) must match the size of tensor b (5)"),
    "x.view(5, 5)": ("shapes", "6 elements do not make the shape [5, 5]"),
    "x.t().view(-1)": ("not contiguous", ".reshape()"),
    "x.bfloat16() @ x.t()": ("dtype", "c10::BFloat16 != float"),
    "x.bfloat16().numpy()": ("dtype", "BFloat16"),
    "x + torch.ones(2, 3, device='meta')": ("device", "device=x.device"),
    "x[7]": ("index", "beyond the end"),
    "x.buffer_pointers": ("no such name", "a Tensor has no `buffer_pointers`"),
    "None.shape": ("None used", "shape"),
    "torch.empty(1 << 58)": ("out of memory", "buffers once"),
    "bytearray(1 << 60)": ("out of memory", "buffers once"),
    "dist.all_gather([x, x, x], x)": ("collective sizes", "world size"),
    "dist.all_to_all_single(torch.empty(5), x.reshape(-1))": ("collective sizes", "world size"),
    "dist.all_to_all_single(x.reshape(-1), x.reshape(-1), [1], [2])": ("collective sizes", "world size"),
    "dist.scatter(x, [x, x])": ("collective sizes", "world size"),
    "dist.all_gather([x.double()], x)": ("dtype", "one dtype"),
    "dist.all_reduce(x, op=dist.ReduceOp.BAND)": ("reduce op", "reduction"),
    "dist.send(x, 0)": ("rank number", "the rank itself"),
    "dist.all_reduce(x, group=3)": ("group", "this rank"),
    "dist.new_group([0, 1, 2])": ("group size", "more ranks"),
    "dist.init_process_group('gloo')": ("process group", "leave init_process_group out"),
    "symm_mem.empty(4, device='cpu')": ("symmetric memory device", "kit.symmetric"),
    "symm_mem_handle.buffer_ptrs": ("no symmetric memory", "symm_mem.empty"),
    "undefined_here(x)": ("undeclared name", "`undefined_here`"),
    "(_ for _ in ()).throw(ValueError('odd'))": ("ValueError", "ValueError in the candidate"),
}  # fmt: skip


def failure(source: str, folder: Path, *arguments) -> tuple[Finding, ...]:
    """What is found out about a candidate that raises, through the harness's own verdict."""
    path = folder / "candidate.py"
    path.write_text(source)
    with pytest.raises(BaseException) as caught:
        import_candidate(path).solution(*arguments)
    outcome = Outcome([RankOutcome(rank, error=describe_error(caught.value)) for rank in range(2)])
    verdict, summary, ranks = judge_failure(outcome, Stage.load, ["", ""])
    stack = ranks[0].stack
    found = causes.explain(verdict, summary, stack, ranks, source)
    assert causes.explain(verdict, summary, stack, (), source) == found, "the summary alone says as much"
    return found


@pytest.mark.parametrize("code", IMPORT)
def test_what_importing_raises(code, bind_kit, tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSMITH_CACHE", str(tmp_path / "cache"))
    bind_kit("").device = None
    cause, said = IMPORT[code]
    (found,) = failure(HEAD + code, tmp_path)
    assert (found.cause, found.certain) == (cause, True) and said in found.text, found
    if cause != "no solution":
        assert "(line " in found.text and found.evidence.startswith("candidate.py:")


@pytest.fixture(scope="module")
def one_rank_group():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("expression", CALL)
def test_what_a_call_raises(expression, bind_kit, tmp_path, one_rank_group):
    import torch

    bind_kit("")
    source = f"{HEAD}{SYMM_MEM}symm_mem_handle = None\n\n\ndef solution(x):\n    return {expression}\n"
    cause, said = CALL[expression]
    (found,) = failure(source, tmp_path, torch.ones(2, 3))
    assert found.cause == cause and said in found.text, found
    assert found.certain or "probably" in found.text
    assert found.text.endswith(" (line 9)") and found.evidence.startswith("candidate.py:9: ")


@pytest.mark.parametrize(
    "expression", ["x.cuda()", "torch.cuda.Stream()", "torch.cuda.Event()", "torch.cuda.CUDAGraph()", "x.pin_memory()"]
)
def test_what_torch_without_cuda_says(expression, bind_kit, tmp_path):
    import torch

    if torch.version.cuda:
        pytest.skip("torch is built with CUDA here")
    bind_kit("")
    (found,) = failure(f"{HEAD}\n\ndef solution(x):\n    return {expression}\n", tmp_path, torch.ones(2, 3))
    assert found.cause == "device" and "there is no GPU here" in found.text and found.certain


def test_the_names_of_kit_are_its_own():
    public = {name for name, value in vars(kit).items() if getattr(value, "__module__", "") == "harness.kit"}
    assert set(KIT_NAMES["harness.kit"]) <= public
    assert all(name in kit.SymmetricBuffer.__init__.__code__.co_names or hasattr(kit.SymmetricBuffer, name)
               for name in KIT_NAMES["SymmetricBuffer"])  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# What only a GPU or a dying process says

CUDA_ERRORS = {
    700: ("an illegal memory access was encountered", "wild address"),
    716: ("misaligned address", "misaligned address"),
    98: ("invalid device function", "wrong target"),
    209: ("no kernel image is available for execution on the device", "wrong target"),
    1: ("invalid argument", "launch arguments"),
    2: ("out of memory", "out of memory"),
    9: ("invalid configuration argument", "launch configuration"),
    217: ("peer access is not supported between these two devices", "peer access"),
    704: ("peer access is already enabled", "peer access"),
    701: ("too many resources requested for launch", "launch resources"),
    719: ("unspecified launch failure", "kernel crashed"),
    720: ("too many blocks in cooperative launch", "grid too large"),
    715: ("an illegal instruction was encountered", "illegal instruction"),
    900: ("operation not permitted when stream is capturing", "not capturable"),
    901: ("operation failed due to a previous error during capture", "not capturable"),
    906: ("operation would make the legacy stream depend on a capturing blocking stream", "not capturable"),
    400: ("invalid resource handle", "stream handle"),
    710: ("device-side assert triggered", "device assert"),
}


def report(message: str, rank: int = 0, **changes) -> RankReport:
    return RankReport(rank=rank, ok=False, stage=Stage.correctness, message=message, line=4, **changes)


@pytest.mark.parametrize("number", CUDA_ERRORS)
def test_what_cuda_says(number):
    text, cause = CUDA_ERRORS[number]
    ranks = [report(f"RuntimeError: reduce: CUDA error: {text}"), RankReport(rank=1, ok=True, stage=Stage.correctness)]
    (found,) = causes.explain(Verdict.runtime_error, "", "", ranks, "LIB.reduce(x)\n")
    assert found.cause == cause and found.text.endswith(" (rank 0, line 4)"), found
    assert found.certain or "probably" in found.text


def test_the_texts_are_the_cuda_runtimes_own():
    import ctypes

    library = next(iter(Path("/usr/local/cuda/lib64").glob("libcudart.so*")), None)
    if library is None:
        pytest.skip("no CUDA runtime here")
    say = ctypes.CDLL(str(library)).cudaGetErrorString
    say.restype = ctypes.c_char_p
    assert {n: say(n).decode() for n in CUDA_ERRORS} == {n: text for n, (text, _) in CUDA_ERRORS.items()}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("f(handle.buffer_ptrs, n)", "`buffer_ptrs_dev`"),
        ("f(handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev)", "1152 blocks at 2 ranks, 576 at 4, 288 at 8"),
        ("f(buf.ptrs)", "the error may come from a launch before this line"),
    ],
)
def test_a_wild_address_is_inferred_from_what_the_candidate_uses(source, said):
    (found,) = causes.explain(
        Verdict.runtime_error, "", "", [report("AcceleratorError: CUDA error: an illegal memory access")], source
    )
    assert found.cause == "wild address" and not found.certain and said in found.text


ENDS = {
    "SIGSEGV": ("", "segmentation fault", ""),
    "SIGFPE": ("", "division by zero", ""),
    "SIGKILL": ("", "killed", ""),
    "exit 3": ("", "process ended", ""),
    "SIGABRT": (
        "terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector::_M_range_check\n",
        "C++ exception", "what():  vector::_M_range_check",
    ),
    "SIGABRT ": ("free(): invalid pointer\n", "heap corrupted", "free(): invalid pointer"),
    "SIGABRT  ": ("f: a.cpp:3: void f(): Assertion `n > 3' failed.\n", "abort", "Assertion `n > 3' failed"),
    "SIGABRT   ": (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: misaligned address\n",
        "misaligned address", "CUDA error: misaligned address",
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_how_a_process_ended(end):
    printed, cause, shown = ENDS[end]
    ranks = [
        report("no progress while inside call 3", 0),
        report("ended while inside call 3", 1, exit=end.strip(), stderr=f"a warning: No module named 'x'\n{printed}"),
    ]
    (found,) = causes.explain(Verdict.runtime_error, "", "", ranks, "")
    assert found.cause == cause and found.text.endswith(" (rank 1, line 4)"), found
    assert found.evidence.startswith(f"candidate.py:4: {end.strip()} while inside call 3") and shown in found.evidence


@pytest.mark.parametrize(
    "source", ["LIB.f<<<1, 32>>>()\n#include <cuda_runtime.h>", "import triton", "x.cuda()", "__global__"]
)
def test_a_device_pointer_is_supposed_only_of_a_candidate_for_gpus(source):
    dead = [report("ended while inside call 1", 0, exit="SIGSEGV")]
    (found,) = causes.explain(Verdict.runtime_error, "", "", dead, source)
    assert "probably host code read a device pointer, an index beyond the end" in found.text and not found.certain
    (found,) = causes.explain(Verdict.runtime_error, "", "", dead, 'extern "C" void f(float* x, long n) { x[n] = 1; }')
    assert "probably an index beyond the end, or an argument" in found.text and "device" not in found.text


def test_a_lost_connection_is_not_the_cause():
    lost = report("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711", 0)
    dead = report("ended while inside call 1", 1, exit="SIGSEGV")
    (found,) = causes.explain(Verdict.runtime_error, "", "", [lost, dead], "")
    assert found.cause == "segmentation fault"
    (alone,) = causes.explain(Verdict.runtime_error, "", "", [lost], "")
    assert alone.cause == "peer lost"


def test_different_errors_of_ranks_are_told_apart():
    ranks = [report("ValueError: a", 0), report("IndexError: list index out of range", 1), report("ValueError: a", 2)]
    found = causes.explain(Verdict.runtime_error, "", "", ranks, "")
    assert [(f.cause, f.text) for f in found] == [
        ("ValueError", "ValueError in the candidate (ranks 0, 2, line 4)"),
        ("index", "an index is beyond the end (rank 1, line 4)"),
    ]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ValueError: odd", "ValueError"),
        ("AssertionError", "AssertionError"),
        ("_Odd_Error: text", "_Odd_Error"),
        ("OutOfResources: out of resource: shared memory", "OutOfResources"),
        ("compiler: the extension gave up", "other error"),
        ("Triton: at 3:4 something else", "other error"),
        ("Errors were found", "other error"),
        ("error: odd", "other error"),
        ("", "other error"),
    ],
)
def test_only_the_name_of_an_error_is_a_cause(error, cause):
    (found,) = causes.explain(Verdict.runtime_error, error, "", [], "")
    assert (found.cause, found.text) == (cause, f"{cause} in the candidate")


def test_a_signal_that_nothing_is_known_of_is_named():
    for end, cause in (("SIGTRAP", "SIGTRAP"), ("closed its channel", "other error")):
        (found,) = causes.explain(Verdict.runtime_error, "", "", [report("ended while idle", 0, exit=end)], "")
        assert found.cause == cause and found.evidence.endswith(f"{end} while idle")


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("out must be a tensor, not None", "nothing returned"),
        ("out has shape (3, 4); it must be (4, 3)", "output shape"),
        ("out[1] has dtype float32; it must be bfloat16", "output dtype"),
        ("out is on cpu; it must be on cuda", "output device"),
        ("out has 2 items; it must have 3", "output structure"),
        ("out must be a tuple of 2, not a tensor", "output structure"),
    ],
)
def test_outputs_of_the_wrong_structure(message, cause):
    (found,) = causes.explain(Verdict.shape_error, f"rank 0: {message}", "", [report(message)], "")
    assert (found.cause, found.certain) == (cause, True)


def test_other_verdicts_are_explained_by_other_evidence():
    for verdict in (None, Verdict.passed, Verdict.wrong_values, Verdict.deadlock, Verdict.policy):
        assert causes.explain(verdict, "x", "a.cu(3): error: y", [report("ValueError")], "") == ()


# ---------------------------------------------------------------------------------------------------------------------
# Reading and matching


def test_what_only_follows_from_an_error_is_left_out():
    log = compiler_logs.read()["wgmma_90"].log
    assert [error.message for error in errors(log)] == ["Instruction 'wgmma.fence' not supported on .target 'sm_90'"]
    assert [error.message for error in errors("collect2: error: ld returned 1 exit status")] == [
        "ld returned 1 exit status"
    ], "unless there is nothing else"
    assert errors("") == () and errors("[1/2] nvcc -c x.cu\nninja: build stopped: subcommand failed.\n") == ()


def test_long_types_are_shortened():
    said = "no match for 'std::vector<std::pair<int, std::__cxx11::basic_string<char, std::char_traits<char> > > >'"
    assert shorten(said) == "no match for 'std::vector<...>'"
    assert shorten("'int64_t' {aka 'long int'}") == "'int64_t'" and len(shorten("x" * 999)) == 240
    assert shorten("a kernel<float, 8>(x)") == "a kernel<float, 8>(x)"


def test_a_rule_reads_its_groups():
    rules = (Rule(r"one (?P<name>\w+)|two (?P<name2>\w+)", "c", "`{name}`{like}", source="^x"),)
    known = find(rules, "two _Z5scalePf", "x", ["scala"])
    assert known is not None and (known.name, known.text) == ("scale", "`scale`; did you mean `scala`?")
    assert find(rules, "three", "x") is None and find(rules, "one a", "y") is None


SLOW = {  # each took a quarter of a second or more for 20,000 characters, and four times as long for twice as many
    "places without a caret": ("", "at 1:1:\n", ""),
    "errors that lead to each other": ("", "a:1: error: : In \n", ""),
    "a long file name": ("", "cuda", ":1:1: error: x"),
    "a long C++ exception": ("what(): ", "cuda", ""),
}


@pytest.mark.parametrize("text", SLOW.values(), ids=list(SLOW))
def test_no_text_takes_long(text):
    start, piece, end = text
    log = start + piece * (100_000 // len(piece)) + end
    began = time.process_time()
    causes.explain(Verdict.compile_error, "", log, (), log)
    causes.explain(Verdict.runtime_error, "", "", [report("", exit="SIGABRT", stderr=log)], "")
    assert time.process_time() - began < 1.5


@pytest.mark.parametrize(
    "piece", ["<", "a<b>", "'", '"', "at 1:1:\n", "{", "%s", "\\", "/a", "candidate.py(" + "9" * 5000 + "): error: x\n"]
)
def test_no_text_makes_the_harness_raise(piece):
    text = piece * (20000 // len(piece))
    for start in ("", "candidate.py:3:1: error: ", "ImportError: cannot import name 'x' from 'y'", "_Z" + "9" * 5000):
        hostile = report(start + text, exit="SIGABRT", stderr=start + text)
        causes.explain(Verdict.compile_error, start + text, start + text, (), text)
        for rank in (hostile, hostile.model_copy(update={"exit": ""})):
            for found in causes.explain(Verdict.runtime_error, "", "", [rank], text):
                assert len(found.text) < 5000 and len(found.evidence) < 700
