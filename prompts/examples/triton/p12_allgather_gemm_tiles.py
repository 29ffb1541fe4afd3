"""All-gather + GEMM: copy engines push row chunks and raise a flag for each; one persistent GEMM waits tile by tile.

A is sharded along the inner axis, so a tile of the product is a sum over ranks' shards. The GEMM starts at once with
the shard that is here. Before it goes on to another rank's shard it waits for one flag: that rank's rows of this tile
have arrived. Nothing waits for the whole gather, the products have one kernel's launch and tail, and sums stay in
registers in float32. Each rank pushes from its input into the peers' symmetric memory, in the order of their use.

Wins where the products take longer than the gather and the gather long enough to be worth hiding. Not for small ones:
copies of less than a few MiB do not reach the link's rate, and a launch per copy costs more than it hides. Gathering
in full and calling cuBLAS, whose products are faster than these, is then better. Measured on 2x H200, bfloat16, device
time against NCCL + cuBLAS: 1.39x where the products take 2 ms, 0.64x where all takes 20 us (0.42x on 4, 0.29x on 8).
"""

import torch
import triton
import triton.language as tl

from harness import kit

RESERVED = 4  # processors that the GEMM leaves alone
MAX_CHUNKS, CHUNK_BYTES = 8, 4 << 20


# After a chunk's copy on the same stream. The flag's value is the number of the call, from device memory: passed from
# the host it would be frozen into a CUDA graph.
@triton.jit(do_not_specialize=["peer", "word"])
def signal_kernel(signals, turn, peer, word):
    flag = tl.load(signals + peer).to(tl.pointer_type(tl.int32)) + word
    tl.atomic_xchg(flag, tl.load(turn), sem="release", scope="sys")


@triton.jit
def wait(flag, value):
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") - value < 0:
        pass
    tl.debug_barrier()  # one thread has acquired; no warp loads before


@triton.jit(do_not_specialize=["rank"])
def gemm_kernel(
    a_local,
    gathered,  # (WORLD, m, k): what the others push; the own part is not used
    b,
    out,
    signals,
    turn,
    m,
    n,
    k,  # of one shard
    chunk_rows,  # a multiple of BLOCK_M, so that a tile lies in one chunk
    rank,
    WORLD: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    flags = tl.load(signals + rank).to(tl.pointer_type(tl.int32))
    number = tl.load(turn)
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        # Groups of rows: what is multiplied at the same time shares rows and columns in L2, and chunks are used in the
        # order in which they arrive.
        group = tile // (GROUP_M * tiles_n)
        height = min(tiles_m - group * GROUP_M, GROUP_M)
        tile_m = group * GROUP_M + (tile % (GROUP_M * tiles_n)) % height
        tile_n = (tile % (GROUP_M * tiles_n)) // height
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        chunk = tile_m * BLOCK_M // chunk_rows

        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        # One loop over shards, the local one included: with a second loop on the same accumulator ptxas makes every
        # wgmma wait for the one before (warning C7515) and runs out of registers.
        for step in range(WORLD):
            source = ((rank + step) % WORLD).to(tl.int64)
            shard = a_local
            if step > 0:
                wait(flags + source * CHUNKS + chunk, number)
                shard = gathered + source * m * k
            b_rows = b + source * k * n
            # A loop of its own for each shard: loads are issued some steps ahead, which must not happen across a wait.
            for begin in range(0, k, BLOCK_K):
                inner = begin + tl.arange(0, BLOCK_K)
                a_at, a_there = shard + (rows % m)[:, None] * k + inner[None, :], inner[None, :] < k
                b_at, b_there = b_rows + inner[:, None] * n + columns[None, :], columns[None, :] < n
                if EVEN_K:
                    left = tl.load(a_at)
                    right = tl.load(b_at, mask=b_there, other=0.0)
                else:
                    left = tl.load(a_at, mask=a_there, other=0.0)
                    right = tl.load(b_at, mask=b_there & (inner[:, None] < k), other=0.0)
                acc = tl.dot(left, right, acc, input_precision=PRECISION)
        at = rows.to(tl.int64)[:, None] * n + columns[None, :]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


STATES = {}


def solution(A_local, B):
    A_local, B = A_local.contiguous(), B.contiguous()
    (m, k), n = A_local.shape, B.shape[1]
    rank, world = kit.rank(), kit.world_size()
    key = (m, n, k, A_local.dtype)
    if key not in STATES:
        STATES[key] = (
            kit.symmetric((world, m, k), A_local.dtype),
            torch.zeros(1, dtype=torch.int32, device=A_local.device),
            torch.cuda.Stream(priority=-1),
        )
    buf, turn, side = STATES[key]
    out = torch.empty((m, n), dtype=A_local.dtype, device=A_local.device)

    programs = torch.cuda.get_device_properties(out.device).multi_processor_count - RESERVED
    if A_local.element_size() == 2 and k % 64 == 0 and triton.cdiv(m, 128) * triton.cdiv(n, 256) >= programs:
        block_m, block_n, block_k, warps, stages = 128, 256, 64, 8, 4
    else:  # few tiles, or float32, whose products in full precision are made without tensor cores
        block_m, block_n, block_k, warps, stages = 64, 64, 32, 4, 3
    chunks = max(1, min(MAX_CHUNKS, m * k * A_local.element_size() // CHUNK_BYTES))
    chunk_rows = triton.cdiv(m, chunks * block_m) * block_m
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)

    main = torch.cuda.current_stream()
    turn.add_(1)
    side.wait_stream(main)
    # All that the GEMM waits for is issued before it: where both streams share a hardware queue, or the launch of a new
    # kernel waits for the device, the GEMM would otherwise keep out what it waits for. For the same reason it leaves
    # processors free: the kernels of the side stream need some to run on.
    with torch.cuda.stream(side):
        # The only barrier of a call, beside the products of the local shard. A rank enters it when its last GEMM has
        # ended: from then on its peers may overwrite what it gathered.
        buf.barrier()
        for chunk, begin in enumerate(range(0, m, chunk_rows)):
            part = slice(begin, min(begin + chunk_rows, m))
            for step in range(1, world):  # the peer multiplies this rank's shard as its step-th
                peer = (rank - step) % world
                buf.peer(peer)[rank, part].copy_(A_local[part])
                signal_kernel[(1,)](buf.signals, turn, peer, rank * MAX_CHUNKS + chunk, num_warps=1)
    gemm_kernel[(min(tiles, programs),)](
        A_local,
        buf.local,
        B,
        out,
        buf.signals,
        turn,
        m,
        n,
        k,
        chunk_rows,
        rank,
        WORLD=world,
        CHUNKS=MAX_CHUNKS,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP_M=8,
        EVEN_K=k % block_k == 0,
        PRECISION="ieee",
        num_warps=warps,
        num_stages=stages,
    )
    # Joined: the copies read the input. What the peers push here has arrived, as the GEMM has seen every flag.
    main.wait_stream(side)
    return out
