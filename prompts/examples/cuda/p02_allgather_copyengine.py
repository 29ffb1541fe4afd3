"""All-gather by the copy engines: no SM moves data, so all of them are free for a kernel on another stream.

Each rank stages its input in symmetric memory, a barrier says that all have, then one asynchronous copy per peer
pulls straight into the output. Every copy has a stream of its own, so that they run at the same time on different
engines; events fork the streams from the caller's and join them again. A second barrier keeps the next call from
overwriting what a slow peer still reads. Two barriers and a dozen API calls cost more than the data below a few
MiB: there a kernel is better.

Measured on 2, 4 and 8 H200, bfloat16, alone, CUDA graphs: 1.14, 0.87 and 0.59 times NCCL's speed at 2 MiB a rank (each
peer costs calls of the API); on 4 0.70 at 64 MiB. Use it where the SMs have other work meanwhile.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

// One block on one slot: joins whole ranks at this point of the stream.
__global__ void barrier_kernel(uint32_t* const* signals, int rank, int world, int slot) {
    rs_barrier_block(signals, rank, world, slot);
}

// `peers` is an array on the host: the addresses of all ranks' staging buffers.
extern "C" void allgather(const void* in, void* out, void* const* peers, uint32_t* const* signals, int64_t bytes,
                          int rank, int world, cudaStream_t stream) {
    static cudaStream_t side[RS_MAX_RANKS];
    static cudaEvent_t ready, copied[RS_MAX_RANKS];
    if (!ready) {  // on the first call, which must not be captured
        cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
        for (int r = 0; r < world; ++r) {
            cudaStreamCreateWithFlags(&side[r], cudaStreamNonBlocking);
            cudaEventCreateWithFlags(&copied[r], cudaEventDisableTiming);
        }
    }
    cudaMemcpyAsync(peers[rank], in, bytes, cudaMemcpyDefault, stream);
    barrier_kernel<<<1, 32, 0, stream>>>(signals, rank, world, 0);
    cudaEventRecord(ready, stream);  // fork
    for (int step = 1; step < world; ++step) {
        const int from = (rank + step) % world;  // each rank begins with another peer
        cudaStreamWaitEvent(side[from], ready, 0);
        cudaMemcpyAsync((char*)out + from * bytes, peers[from], bytes, cudaMemcpyDefault, side[from]);
        cudaEventRecord(copied[from], side[from]);
    }
    cudaMemcpyAsync((char*)out + rank * bytes, in, bytes, cudaMemcpyDefault, stream);  // meanwhile the own slice
    for (int step = 1; step < world; ++step) cudaStreamWaitEvent(stream, copied[(rank + step) % world], 0);  // join
    barrier_kernel<<<1, 32, 0, stream>>>(signals, rank, world, 0);
}
"""

LIB = kit.build(SOURCE)
STAGING = {}


def staging_for(nbytes):
    # The smallest power of two that holds the message: few buffers serve all shapes. All ranks see the same shapes.
    size = max(1 << 16, 1 << (nbytes - 1).bit_length())
    if size not in STAGING:
        buf = kit.symmetric((size,), torch.uint8)
        peers = torch.tensor([buf.peer(r).data_ptr() for r in range(kit.world_size())], dtype=torch.int64)
        STAGING[size] = (buf, peers)
    return STAGING[size]


def solution(tensor):
    tensor = tensor.contiguous()
    world = kit.world_size()
    out = torch.empty((world, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return out
    buf, peers = staging_for(nbytes)
    LIB.allgather(tensor, out, peers, buf.signals, nbytes, kit.rank(), world, kit.stream())
    return out
