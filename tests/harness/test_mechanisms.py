"""What moves a candidate's data, told from its text: checked against files that were read, some of them measured."""

import re
import time
from pathlib import Path

import pytest

from harness import mechanisms as module
from harness.code_text import parsed, pieces
from harness.mechanisms import mechanisms
from harness.policy import ALLOW_VARIABLE
from harness.types import Evaluation

ROOT = Path(__file__).resolve().parents[2]
SM, COPY, TMA, NCCL, GLOO, SHARED = (
    ("SM loads and stores",),
    ("copy engine",),
    ("TMA",),
    ("NCCL",),
    ("gloo",),
    ("shared memory",),
)
COLLECTIVE = re.compile(r"\bdist\.(?:all_reduce|all_gather\w*|reduce|broadcast)\b")

# A profile on GPUs says the same of all prompts/examples/cuda but p01_allreduce_loadinline, and of p12 in triton.
READ = {
    "prompts/examples/cpp/p01_allreduce_shm": SHARED,
    "prompts/examples/cuda/p01_allreduce_loadinline": SM,
    "prompts/examples/cuda/p01_allreduce_oneshot": SM,
    "prompts/examples/cuda/p01_allreduce_twoshot": SM,
    "prompts/examples/cuda/p02_allgather_copyengine": COPY,
    "prompts/examples/cuda/p08_alltoall_push": SM,
    "prompts/examples/cuda/p13_gemm_allreduce": SM,
    "prompts/examples/cuda/p16_ring_gemm": COPY,
    "prompts/examples/cuda/p28_moe_dispatch": SM,
    "prompts/examples/cuda/p34_allgather_tma": TMA,
    "prompts/examples/cuda/p45_reducescatter_rmsnorm": SM,
    "prompts/examples/triton/p01_allreduce_twoshot_triton": SM,
    "prompts/examples/triton/p12_allgather_gemm_tiles": COPY,
}


def _add(folder: str, names: str, found: tuple[str, ...]) -> None:
    READ.update({f"{folder}/{name}": found for name in names.split()})


_add(
    "tests/honest/cpp",
    "p01_collects_garbage p01_cycle_holds_workspace p01_finalises_late p01_helper_process p01_joined_thread_per_call "
    "p01_keeps_quiet p01_logs_and_formats_errors p01_ring_of_outputs p01_slow_first_call p01_strided_output "
    "p01_two_threads p01_uses_temporary_files p01_workers_come_up p02_growing_pool p02_logs_each_call "
    "p03_static_output p13_multiplies_changes_only p13_own_threads_setting p18_collective_for_part",
    GLOO,
)
_add(
    "tests/honest/cpp",
    "p01_double_buffer_one_barrier p01_more_precise p01_numpy_views p01_one_slow_rank p01_published_example "
    "p01_rotating_order p01_sums_changes_only p01_thread_pool_cpp p01_thread_pool_python p01_view_of_workspace "
    "p01_workspace_by_shape p02_slow_build p04_reads_from_peers p05_constants_of_rank p06_returns_its_input "
    "p07_inference_mode p07_tree p08_chunked_copy",
    SHARED,
)
_add(
    "tests/honest/cuda",
    "p01_double_sums p01_host_threads p01_joined_side_stream p01_late_on_one_rank p01_live_copy_graph "
    "p01_output_is_a_view p01_parity_one_barrier p01_pool_grows_at_first p01_ring_of_outputs p01_rotating_order "
    "p01_slow_first_build p01_static_output p01_stream_ordered_allocation p01_torch_symmetric_memory p02_load_inline "
    "p02_push_with_own_flags p03_broadcast_parity p04_root_reads_alone p07_reduce_scatter_static p08_push_parity "
    "p13_joined_side_stream p13_workspace_by_shape",
    SM,
)
_add("tests/honest/cuda", "p01_triton_sum p02_copy_engines_joined", COPY)
_add("tests/honest/cuda", "p01_half_by_nccl", NCCL + SM)
_add("tests/honest/cuda", "p01_compiled p01_leaves_garbage p01_looks_for_copies p02_waits_for_the_device", NCCL)
_add(
    "tests/evil/cuda",
    "p01_barrier_works_once p01_burns_while_idle p01_crash_illegal_address p01_deadlock_under_skew "
    "p01_entry_barrier_missing p01_exit_barrier_missing p01_exit_barrier_missing_slow_reader p01_graph_stale_replay "
    "p01_hang_missing_signal p01_helper_thread p01_input_touched_by_kernel p01_joined_one_call_late p01_leak_cuda "
    "p01_leaves_another_stream p01_patched_current_stream p01_side_stream_unforked p01_side_stream_unjoined "
    "p01_super_batch p01_too_many_waiting_blocks p01_trap p01_uninitialised_tail p01_unwritten_shared_memory "
    "p01_unforked_later p01_wrong_rank_dropped p01_wrong_tail p02_hang_one_rank_skips p02_round_number_frozen "
    "p02_wrong_order p04_root_reads_alone p13_last_chunk_unjoined",
    SM,
)
_add("tests/evil/cuda", "p02_copies_unjoined p02_exit_barrier_missing p02_late_peer_writes", COPY)
_add(
    "tests/evil/cuda",
    "p01_compile_error p01_excuses p01_guessed_seeds p01_host_segfault p01_leftover_memory p01_own_times_world "
    "p01_spinning_kernel p13_wrong_missing_reduce",
    (),
)
_add(
    "tests/evil/cuda",
    "p01_async_op_unwaited p01_cache_by_address p01_cache_by_shape p01_fp8_on_the_wire p01_only_rank_zero_right "
    "p01_triton_last_block_skipped p02_peers_remembered p13_crash_shape",
    NCCL,
)


@pytest.mark.parametrize("name", READ)
def test_as_read(name):
    source = (ROOT / f"{name}.py").read_text()
    platform = "cpu" if "/cpp/" in name else "cuda"
    assert mechanisms(source, platform, COLLECTIVE.search(source) is not None) == READ[name]


def test_every_honest_candidate_and_example_is_in_the_table():
    there = [*ROOT.glob("prompts/examples/*/*.py"), *ROOT.glob("tests/honest/c*/*.py")]
    assert {str(path.relative_to(ROOT).with_suffix("")) for path in there} <= set(READ)


KERNEL = """
from harness import kit
SOURCE = r'''
DEVICE
__global__ void k(const char* in, char* out, char* const* buffers, int n, int rank, int world) {
    BODY
}
extern "C" void run(const char* in, char* out, char* const* buffers, int n, int rank, int world, cudaStream_t s) {
    k<<<1, 32, 0, s>>>(in, out, buffers, n, rank, world);
}
'''
LIB = kit.build(SOURCE)
BUFFERS = {}
def solution(x):
    out = x.clone()
    if x.shape not in BUFFERS:
        BUFFERS[x.shape] = kit.symmetric(x.shape, x.dtype)
    buf = BUFFERS[x.shape]
    LIB.run(x, out, buf.ptrs, x.numel(), kit.rank(), kit.world_size(), kit.stream())
    return out
"""
BULK = 'asm volatile("cp.async.bulk.shared::cluster.global.mbarrier [%0], [%1];" ::"r"(to), "l"(from));'
DEVICE = f"__device__ void load(unsigned to, const void* from) {{ {BULK} }}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("out[0] = buffers[(rank + 1) % world][0];", SM),
        ("const char* theirs = buffers[1 - rank]; out[0] = theirs[0];", SM),
        ("buffers[rank][0] = in[0];", ()),
        ("rs_signal((unsigned*)buffers[1 - rank], 1);", ()),
        ("// out[0] = buffers[1][0];", ()),
        ("load(0, buffers[1 - rank] + n);", TMA),
        ("load(0, in); buffers[1 - rank][0] = in[0];", SM),
        ("for (int rank = 0; rank < world; ++rank) out[rank] = buffers[rank][0];", SM),
    ],
)
def test_kernels_are_told_by_where_peers_addresses_go(body, found):
    assert mechanisms(KERNEL.replace("BODY", body).replace("DEVICE", DEVICE), "cuda", False) == found


PEER = "from harness import kit\nbuf = kit.symmetric(8, d)\nr = 1\n"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (PEER + "out.copy_(buf.peer(r))", COPY),
        (PEER + "out[2:4] = buf.peer(r)", COPY),
        (PEER + "buf.peer(r)[0].copy_(x)", COPY),
        (PEER + "out.copy_(buf.peer(kit.rank()))", ()),
        (PEER + "buf.local.copy_(x)", ()),
        (PEER + "'out.copy_(buf.peer(r))'\n# out.copy_(buf.peer(r))", ()),
        (PEER + "out += buf.peer(r)", SM),
        (PEER + "torch.add(x, buf.peer(r), out=out)", SM),
        (PEER + "parts = [buf.peer(i) for i in range(4)]\nout = torch.stack(parts).sum(0)", SM),
        (PEER + "out.copy_(buf.peer(r))\nkernel[(1,)](buf.ptrs, out)", COPY + SM),
        ("class A:\n def f(self):\n  self.p = h.get_buffer(1, s, d)\n def g(self, out):\n  out.copy_(self.p)", COPY),
        ("def f(p):\n return p[1]\ndef g(h, out):\n cudart.cudaMemcpyAsync(out, f(h.buffer_ptrs), 8, 3, 0)", COPY),
        ("torch.ops.symm_mem.one_shot_all_reduce(x, 'sum', group)", SM),
        ("torch.ops.symm_mem.fused_all_gather_matmul(x, [w], 0, group)", COPY),
        ("@triton.jit\ndef k(p):\n d = tl.make_tensor_descriptor(p)\ndef f(buf):\n k[(1,)](buf.ptrs)", ()),
        ("print(h.peer(1).shape)", ()),
        ("def (", ()),
        ("x = " + "(" * 5000, ()),
    ],
)
def test_python_is_told_by_where_peers_tensors_go(source, found):
    assert mechanisms(source, "cuda", False) == found


HOST = """
SOURCE = r'''
static char* table[8];
extern "C" void set(char** peers, int world) { for (int r = 0; r < world; ++r) table[r] = peers[r]; }
extern "C" void upload(void** device, char* const* peers) {
    cudaMemcpyAsync(device, peers, 8 * sizeof(void*), cudaMemcpyHostToDevice, 0);
}
extern "C" void pull(char* out, int from, cudaStream_t s) { cudaMemcpyAsync(out, table[from], 64, DEFAULT, s); }
extern "C" void local(char* out, const char* in, cudaStream_t s) { cudaMemcpyAsync(out, in, 64, DEFAULT, s); }
'''
LIB = kit.build(SOURCE)
"""


def test_addresses_kept_on_the_host_are_followed_and_copies_of_addresses_do_not_count():
    assert mechanisms(HOST + "LIB.set(buf.ptrs, 4)\nLIB.pull(out, 1, 0)", "cuda", False) == COPY
    assert mechanisms(HOST + "LIB.upload(table, buf.ptrs)\nLIB.local(out, x, 0)", "cuda", False) == ()


def test_multicast_is_named_only_where_it_may_run(monkeypatch):
    source = "torch.ops.symm_mem.multimem_all_reduce_(x, 'sum', group)"
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)
    assert mechanisms(source, "cuda", False) == ()
    monkeypatch.setenv(ALLOW_VARIABLE, "multicast")
    assert mechanisms(source, "cuda", False) == ("NVLS",)


def test_the_order_is_the_profiles():
    assert mechanisms(PEER + "out.copy_(buf.peer(r))", "cuda", True) == NCCL + COPY
    assert mechanisms("kit.symmetric(8, d)", "cpu", True) == GLOO + SHARED
    assert set(module._ORDER) == set(Evaluation.model_fields["mechanisms"].annotation.__args__[0].__args__)


def test_a_long_source_takes_milliseconds():
    source = (ROOT / "prompts/examples/cuda/p34_allgather_tma.py").read_text()
    begin, end = source.index('r"""') + 4, source.index('"""\n\nLIB')
    more = [re.sub(r"\b(allgather|load_bulk|store_bulk)\b", rf"\1_{i}", source[begin:end]) for i in range(8)]
    source = source[:begin] + "".join([source[begin:end], *more]) + source[end:]
    assert len(source) > 100_000
    taken = []
    for _ in range(5):
        pieces.cache_clear()
        parsed.cache_clear()
        began = time.process_time()
        assert mechanisms(source, "cuda", False) == TMA
        taken.append(time.process_time() - began)
    assert min(taken) < 0.06  # 0.015 to 0.025 on two busy cores, parsing included


@pytest.mark.parametrize(
    "code",
    [
        "void f(int** p) { " + "p " * 100_000 + "}",
        "void f(int** p) { int a0 = p; " + "".join(f"int a{i} = a{i - 1}; " for i in range(1, 3000)) + "}",
        "".join(f"void f{i or ''}(int** p) {{ f{i + 1}(p); f{i + 1}(p); }}" for i in range(60)),
        "__global__ void k(int** p) { d0(p); } void f(int** p) { k<<<1, 1>>>(p); }"
        + "".join(f"__device__ void d{i}(int** p) {{ d{i + 1}(p); d{i + 1}(p); }}" for i in range(60)),
    ],
    ids=["words", "chain", "calls", "device calls"],
)
def test_a_source_without_end_takes_no_long_time(code):
    began = time.process_time()
    mechanisms(f"S = '''{code}'''\nLIB.f(buf.ptrs)", "cuda", False)
    assert time.process_time() - began < 2
