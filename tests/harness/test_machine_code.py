"""Facts from machine code that nvcc made here, read by the toolkit's disassembler."""

import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from harness import machine_code
from harness.profile_types import KernelCode

try:
    TOOL = machine_code.disassembler()
except machine_code.NoDisassemblerError:
    TOOL = ""
pytestmark = pytest.mark.skipif(not TOOL or not shutil.which("nvcc"), reason="needs nvcc and cuobjdump")

SOURCE = r"""
#include <cstdint>
#define RELEASE(flag) asm volatile("st.release.sys.global.u32 [%0], 1;" ::"l"(flag) : "memory")
__global__ void wide(uint4* a, const uint4* b) { a[threadIdx.x] = b[threadIdx.x]; }
__global__ void narrow(float* a, const float* b, const uint8_t* c) { a[threadIdx.x] = b[threadIdx.x] + c[threadIdx.x]; }
__global__ void async_copy(float* a, const float4* b) {
    __shared__ float4 s[32];
    unsigned to = __cvta_generic_to_shared(s + threadIdx.x);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.wait_all;" ::"r"(to), "l"(b + threadIdx.x));
    __syncthreads();
    a[threadIdx.x] = s[31 - threadIdx.x].x;
}
__global__ __launch_bounds__(1024) void spills(float* a, int n) {
    float x[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) x[i] = a[i * n + threadIdx.x];
    for (int k = 0; k < n; ++k)
#pragma unroll
        for (int i = 0; i < 96; ++i) x[i] = x[i] * x[(i + 7) % 96] + 1.f;
#pragma unroll
    for (int i = 0; i < 96; ++i) a[i * n + threadIdx.x] = x[i];
}
__global__ void release_in_a_loop(uint4* a, const uint4* b, unsigned* flag, int n) {
#pragma unroll 1
    for (int i = 0; i < n; ++i) { a[i] = b[i]; RELEASE(flag + i); }
}
__global__ void release_after_a_loop(uint4* a, const uint4* b, unsigned* flag, int n) {
#pragma unroll 1
    for (int i = 0; i < n; ++i) a[i] = b[i];
    RELEASE(flag);
}
// The compiler puts the slow path of a shuffle behind the end, from where it jumps back over the release.
__global__ void release_after_a_shuffle(float* a, unsigned* flag, int n) {
    float x = a[threadIdx.x];
    if (threadIdx.x < n) {
        for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    }
    a[threadIdx.x] = x;
    __syncthreads();
    if (threadIdx.x == 0) RELEASE(flag);
}
__global__ void waits(unsigned* flag, float* a) {
    unsigned seen;
    do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    while (seen != 1);
    a[0] = 1;
}
__global__ void raises(unsigned* flag) { atomicAdd_system(flag, 1); }
__global__ void wide_flags(uint4* a) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {1, 1, 1, 1};" ::"l"(a) : "memory");
}
__global__ void own_gpu_only(unsigned* flag) { __threadfence(); atomicAdd(flag, 1); }
__global__ void fence(float* a) { a[0] = 1; __threadfence_system(); a[1] = 2; }
__global__ void bulk(void* to, const void* from, int n) {
    extern __shared__ __align__(128) char s[];
    __shared__ uint64_t bar;
    unsigned at = __cvta_generic_to_shared(s), b = __cvta_generic_to_shared(&bar);
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(b));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(at), "l"(from), "r"(n), "r"(b) : "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(at), "r"(n) : "memory");
}
__global__ void mma(float* d, const unsigned* a) {
    float c[4] = {};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));
    d[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}
__global__ void wgmma(float* d, uint64_t a, uint64_t b) {
    float c[4] = {};
    asm volatile("wgmma.fence.sync.aligned;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;\n"
                 "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(a), "l"(b));
    d[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}
template <class T> __global__ void each_type(T* a, const T* b) { a[threadIdx.x] = b[threadIdx.x]; }
template __global__ void each_type(float*, const float*);
template __global__ void each_type(uint4*, const uint4*);
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache") / "0a" / "1b"
    folder.mkdir(parents=True)
    (folder / "k.cu").write_text(SOURCE)
    arch = ["-gencode", "arch=compute_90a,code=sm_90a"]
    command = ["nvcc", *arch, "-shared", "-Xcompiler", "-fPIC", "k.cu", "-o", "k.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=100, capture_output=True)
    return folder.parent.parent


@pytest.fixture(scope="module")
def sass(compiled):
    command = [TOOL, "-sass", str(next(compiled.rglob("*.so")))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def code(compiled):
    return SimpleNamespace(**machine_code.kernels(compiled))


def plain(code: KernelCode) -> set[str]:
    """What is there of a kernel's facts."""
    return {name for name, value in code.model_dump().items() if value and name not in ("name", "loads", "stores")}


def test_widths_of_accesses(code):
    assert (code.wide.loads, code.wide.stores) == ({16: 1}, {16: 1})
    assert (code.narrow.loads, code.narrow.stores) == ({4: 1, 1: 1}, {4: 1})
    assert (code.async_copy.loads, code.async_copy.stores) == ({16: 1}, {4: 1})
    assert plain(code.wide) == plain(code.narrow) == plain(code.async_copy) == set()


def test_spills(code):
    assert code.spills.spills > 20 and plain(code.spills) == {"spills"}


def test_a_fence_is_in_a_loop_only_if_it_runs_again(code):
    inside, after, rare = code.release_in_a_loop, code.release_after_a_loop, code.release_after_a_shuffle
    assert (inside.system_fences, inside.system_fences_in_loops) == (1, 1)
    assert (after.system_fences, after.system_fences_in_loops) == (1, 0)
    assert (rare.system_fences, rare.system_fences_in_loops) == (1, 0)
    assert plain(code.fence) == {"system_fences"} and plain(code.own_gpu_only) == set()


def test_signals(code):
    for kernel in (code.waits, code.raises, code.wide_flags, code.release_in_a_loop):
        assert kernel.signals == 1, kernel
    assert code.waits.loads == {} and code.waits.stores == {4: 1}  # a flag is no data
    assert code.wide_flags.stores == {16: 1}  # and this is both


def test_bulk_copies_and_matrix_instructions(code):
    assert code.bulk.bulk_copies == 2 and plain(code.bulk) == {"bulk_copies"}
    assert code.mma.tensor == 1 and code.wgmma.tensor == 1 and code.waits.tensor == 0


def test_instances_of_a_template_are_one_kernel(code):
    assert code.each_type.loads == {4: 1, 16: 1} and code.each_type.stores == {4: 1, 16: 1}


def test_labels_for_targets_give_the_same(sass):
    """As other versions of the disassembler write them."""
    number = iter(range(10**6))
    functions = re.split(r"(?=^\s*Function : )", sass, flags=re.M)

    def labelled(function: str) -> str:
        targets = {t: f".L_x_{next(number)}" for t in re.findall(r"BRA[^;]*0x([0-9a-f]+)\s*;", function)}
        for target, label in targets.items():
            function = re.sub(rf"(BRA[^;]*)0x{target}(\s*;)", rf"\1`({label})\2", function)
            function = re.sub(
                rf"^(\s*/\*0*{target}\*/.*BRA|\s*/\*0*{target}\*/)", rf"{label}:\n\1", function, flags=re.M
            )
        return function

    changed = "".join(map(labelled, functions))
    assert "`(.L_x_" in changed and "BRA 0x" not in changed
    assert machine_code.parse(changed) == machine_code.parse(sass)


def test_only_what_is_a_file_is_read(compiled, tmp_path, monkeypatch):
    assert machine_code.kernels(tmp_path) == {}
    (tmp_path / "text.so").write_text("int main() {}")
    (tmp_path / "empty.cubin").touch()
    (tmp_path / "link.so").symlink_to(next(compiled.rglob("*.so")))
    (tmp_path / "folder.so").mkdir()
    assert machine_code.kernels(tmp_path) == {}
    monkeypatch.setattr(machine_code, "_DISASSEMBLE_S", 0.0)
    assert machine_code.kernels(compiled) == {}


@pytest.mark.parametrize(
    "text",
    [
        "", "/*0010*/ LDG.E.128 R0 ;", "Function : f\n /*0010*/ BRA `(.L_x_9) ;\n", "Function : f\n.L_x_1:\n",
        "Function : f\n /*0010*/ MEMBAR.SC.SYS ;\n /*0020*/ BRA 0x9999999999999999 ;", "Function : \n",
    ],
)  # fmt: skip
def test_odd_listings_are_parsed(text):
    for code in machine_code.parse(text):
        assert plain(code) <= {"system_fences"}
