"""All-to-all by stores into the receivers' memory, with a flag for every pair of blocks and no barrier.

Half of the time of "stage, barrier, read, barrier" goes into meeting everybody twice. Here a block serves one peer
only. It loads a tile of the part for that peer, stores it straight into the peer's ring, raises one flag, and copies
what its partner block has sent meanwhile into the output. The own part is copied while the last flag is on its way.
Stores are posted, so none waits for the link as a load from a peer would, and a late rank holds up only the blocks
that serve it.

A ring has four slots, used in turn by a tile number that goes on from call to call, so that the flags which say "sent"
also say "copied", and none has to travel back (the proof is at the kernel). The tile number is kept in device memory: a
replayed CUDA graph continues it. The ring's size depends neither on the message nor on the number of ranks.

Good from the smallest messages on; small ones cost one flag's way. Data crosses this rank's memory once more than the
link needs: where HBM and not the link is the limit, pull into the output instead. Measured on 2x H200, device time
against NCCL: 1.81x at 2 MiB from rank to rank, 1.18x at 28 MiB; 1.28x and 1.30x at 2 MiB on 4 and 8.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

constexpr int THREADS = 256, BLOCKS_PER_SM = 4, MAX_BLOCKS = 528;  // four on each of an H100's or H200's 132
constexpr int MAX_TILE = 1024, SLOTS = 4;  // a tile is counted in 16-byte words

// Word i of a part of n T's. T is uint4 if all parts begin at multiples of 16 bytes, else a smaller type that fits.
// Then this rank's input and output are accessed in small pieces; what crosses the link are whole words all the same.
template <class T>
__device__ __forceinline__ uint4 take(const T* part, int i, int64_t n) {
    if constexpr (sizeof(T) == 16) return rs_ld16(part + i);
    else return rs_ld16_part(part, (int64_t)i * (16 / (int)sizeof(T)), n);
}
template <class T>
__device__ __forceinline__ void put(T* part, int i, int64_t n, uint4 word) {
    if constexpr (sizeof(T) == 16) rs_st16(part + i, word);
    else rs_st16_part(part, (int64_t)i * (16 / (int)sizeof(T)), n, word);
}

// Block (x, y) of rank r serves peer r + y + 1. Its partner there is block (x, world - 2 - y), the one that serves r.
//
// Why four slots and one flag per tile are enough. A block sends tile s, raises the flag, waits for the partner's tile
// s - 1 and copies it. Tile s overwrites tile s - 4 in the partner's ring, which the partner copied before it raised
// its flag for tile s - 2. That flag this block has seen: it waited for it before it copied tile s - 2 itself, just
// before, or in an earlier call, for a call ends only when all its tiles are copied. Other blocks share neither slots
// nor flags with these two, whatever the sizes of the calls: places depend on x, the peer and the tile's number.
template <class T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) alltoall_kernel(
    const T* in, T* out, uint4* const* rings, uint32_t* const* signals, uint32_t* sent, int64_t n, int words, int tiles,
    int tile, int rank, int world) {
    constexpr int flight = sizeof(T) == 16 ? 4 : 1;  // words that a thread has under way
    const int x = blockIdx.x, y = blockIdx.y, peer = (rank + y + 1) % world;
    const int columns = MAX_BLOCKS / (world - 1);  // fixed, unlike gridDim.x: places must not depend on the call's size
    uint4* theirs = rings[peer] + (int64_t)((world - 2 - y) * columns + x) * (SLOTS * MAX_TILE);
    const uint4* mine = rings[rank] + (int64_t)(y * columns + x) * (SLOTS * MAX_TILE);
    uint32_t* their_flag = signals[peer] + RS_SLOT_WORDS * x + rank;
    const uint32_t* my_flag = signals[rank] + RS_SLOT_WORDS * x + peer;
    const uint32_t first = sent[y * columns + x];  // the number of this call's first tile
    const T* to_peer = in + peer * n;
    T* from_peer = out + peer * n;

    for (int stage = 0; stage <= tiles; ++stage) {
        if (stage < tiles) {
            const int begin = (stage * (int)gridDim.x + x) * tile;
            const int count = words - begin < tile ? words - begin : tile;  // not positive behind the end
            uint4* slot = theirs + ((first + stage) % SLOTS) * MAX_TILE;
            for (int j = threadIdx.x; j < count; j += flight * THREADS) {
                uint4 word[flight] = {};
#pragma unroll
                for (int k = 0; k < flight; ++k)
                    if (j + k * THREADS < count) word[k] = take(to_peer, begin + j + k * THREADS, n);
#pragma unroll
                for (int k = 0; k < flight; ++k)
                    if (j + k * THREADS < count) rs_st16(slot + j + k * THREADS, word[k]);
            }
            __syncthreads();  // all have stored this tile and copied the one before the last
            if (threadIdx.x == 0) rs_signal(their_flag, first + stage + 1);
        } else {  // the own part, by all blocks
            const int all = gridDim.x * gridDim.y * THREADS;
            const T* from = in + rank * n;
            T* to = out + rank * n;
            for (int i = (y * (int)gridDim.x + x) * THREADS + threadIdx.x; i < words; i += flight * all) {
                uint4 word[flight] = {};
#pragma unroll
                for (int k = 0; k < flight; ++k)
                    if (i + k * all < words) word[k] = take(from, i + k * all, n);
#pragma unroll
                for (int k = 0; k < flight; ++k)
                    if (i + k * all < words) put(to, i + k * all, n, word[k]);
            }
        }
        if (stage > 0) {
            const int begin = ((stage - 1) * (int)gridDim.x + x) * tile;
            const int count = words - begin < tile ? words - begin : tile;
            const uint4* slot = mine + ((first + stage - 1) % SLOTS) * MAX_TILE;
            if (threadIdx.x == 0) rs_wait(my_flag, first + stage);
            __syncthreads();
            for (int j = threadIdx.x; j < count; j += flight * THREADS) {
                uint4 word[flight] = {};
#pragma unroll
                for (int k = 0; k < flight; ++k)
                    if (j + k * THREADS < count) word[k] = rs_ld16(slot + j + k * THREADS);
#pragma unroll
                for (int k = 0; k < flight; ++k)
                    if (j + k * THREADS < count) put(from_peer, begin + j + k * THREADS, n, word[k]);
            }
        }
    }
    if (threadIdx.x == 0) sent[y * columns + x] = first + tiles;  // all have read it: there were barriers between
}

template <class T>
void launch(const void* in, void* out, void* const* rings, uint32_t* const* signals, uint32_t* sent, int64_t bytes,
            int rank, int world, cudaStream_t stream) {
    static const int resident = rs_resident_blocks(alltoall_kernel<T>, THREADS);
    const int peers = world - 1, most = (resident < MAX_BLOCKS ? resident : MAX_BLOCKS) / peers;
    const int words = (int)((bytes + 15) / 16), wanted = (words + THREADS - 1) / THREADS;  // up to 16 GiB a part
    const int columns = wanted < most ? wanted : most, share = (words + columns - 1) / columns;
    // A few tiles, so that copying hides behind sending; not too small ones, for each costs a fence.
    int tile = THREADS;
    while (tile < MAX_TILE && share > 4 * tile) tile *= 2;
    alltoall_kernel<T><<<dim3(columns, peers), THREADS, 0, stream>>>(
        (const T*)in, (T*)out, (uint4* const*)rings, signals, sent, bytes / (int64_t)sizeof(T), words,
        (share + tile - 1) / tile, tile, rank, world);
}

extern "C" int64_t ring_bytes() { return (int64_t)MAX_BLOCKS * SLOTS * MAX_TILE * 16; }
extern "C" int most_blocks() { return MAX_BLOCKS; }

// `bytes` is one part's; `in` and `out` are aligned. So all ranks take the same T, and with it the same grid.
extern "C" void alltoall(const void* in, void* out, void* const* rings, uint32_t* const* signals, void* sent,
                         int64_t bytes, int rank, int world, cudaStream_t stream) {
    uint32_t* numbers = (uint32_t*)sent;
    if (bytes % 16 == 0) return launch<uint4>(in, out, rings, signals, numbers, bytes, rank, world, stream);
    if (bytes % 4 == 0) return launch<uint32_t>(in, out, rings, signals, numbers, bytes, rank, world, stream);
    if (bytes % 2 == 0) return launch<uint16_t>(in, out, rings, signals, numbers, bytes, rank, world, stream);
    return launch<uint8_t>(in, out, rings, signals, numbers, bytes, rank, world, stream);
}
"""

LIB = kit.build(SOURCE)
STATE = None


def solution(tensor):
    global STATE
    world = kit.world_size()
    tensor = tensor.contiguous()
    if tensor.data_ptr() % 16:  # a view that begins inside an allocation
        tensor = tensor.clone()
    if tensor.numel() == 0 or world == 1:
        return tensor.clone()
    if STATE is None:  # one ring serves all shapes and dtypes; the numbers of the blocks' tiles go on in it
        sent = torch.zeros(LIB.most_blocks(), dtype=torch.int32, device=tensor.device)
        STATE = kit.symmetric((LIB.ring_bytes(),), torch.uint8), sent
    ring, sent = STATE
    out = torch.empty_like(tensor)
    part = tensor.numel() * tensor.element_size() // world
    LIB.alltoall(tensor, out, ring.ptrs, ring.signals, sent, part, kit.rank(), world, kit.stream())
    return out
