"""One-step all-reduce in plain PyTorch style: a pybind extension, torch's symmetric memory, torch's signal pads.

Each block copies its part of the input into this rank's symmetric buffer, meets the same block of all other ranks,
reads that part from all ranks and adds in float32. A second barrier at the exit keeps the next call from
overwriting what a slow peer still reads. Torch's pads must be left zero, so each flag is raised 0 -> 1 by the
sender and lowered 1 -> 0 by the waiter, both by compare-and-swap. A flag's word is world_size * block + sender;
2304 words hold 576 blocks at 4 ranks, 144 at 16.
"""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

CUDA_SRC = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <torch/extension.h>

constexpr int THREADS = 512, BLOCKS = 128;  // 128 blocks fit the pads up to 16 ranks, and the GPU all at once

// Scope .sys: the flag's reader is another GPU. Release before, acquire after: the flag carries the data with it.
__device__ void raise_flag(uint32_t* flag) {
    uint32_t old;
    do asm volatile("atom.release.sys.global.cas.b32 %0, [%1], 0, 1;" : "=r"(old) : "l"(flag) : "memory");
    while (old != 0);  // not yet lowered since the last time
}
__device__ void take_flag(uint32_t* flag) {
    uint32_t old;
    do asm volatile("atom.acquire.sys.global.cas.b32 %0, [%1], 1, 0;" : "=r"(old) : "l"(flag) : "memory");
    while (old != 1);
}
__device__ void barrier(uint32_t* const* pads, int rank, int world) {
    __syncthreads();
    if (threadIdx.x < world && threadIdx.x != rank) {
        raise_flag(pads[threadIdx.x] + world * blockIdx.x + rank);
        take_flag(pads[rank] + world * blockIdx.x + threadIdx.x);
    }
    __syncthreads();
}

__device__ float to_float(float x) { return x; }
__device__ float to_float(__half x) { return __half2float(x); }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void from_float(float& y, float x) { y = x; }
__device__ void from_float(__half& y, float x) { y = __float2half_rn(x); }
__device__ void from_float(__nv_bfloat16& y, float x) { y = __float2bfloat16_rn(x); }

// n is a multiple of a 16-byte word and all pointers are aligned: Python pads odd sizes.
template <class T>
__global__ void __launch_bounds__(THREADS) allreduce_kernel(
    const uint4* in, uint4* out, char* const* buffers, int64_t offset, uint32_t* const* pads, int64_t words, int rank,
    int world) {
    constexpr int width = 16 / sizeof(T);
    const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, stride = (int64_t)gridDim.x * THREADS;
    uint4* mine = (uint4*)(buffers[rank] + offset);
    for (int64_t i = first; i < words; i += stride) mine[i] = in[i];
    barrier(pads, rank, world);
    for (int64_t i = first; i < words; i += stride) {
        float sum[width] = {};
        for (int r = 0; r < world; r += 4) {  // four loads in flight; added in the order of ranks
            uint4 word[4] = {};
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (r + k < world) word[k] = ((const uint4*)(buffers[r + k] + offset))[i];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (r + k < world) {
                    alignas(16) T part[width];
                    *(uint4*)part = word[k];
#pragma unroll
                    for (int e = 0; e < width; ++e) sum[e] += to_float(part[e]);
                }
        }
        alignas(16) T part[width];  // else the compiler stores byte by byte
#pragma unroll
        for (int e = 0; e < width; ++e) from_float(part[e], sum[e]);
        out[i] = *(uint4*)part;
    }
    barrier(pads, rank, world);  // exit: nobody reads this rank's buffer any more
}

void allreduce(torch::Tensor in, torch::Tensor out, int64_t buffers, int64_t offset, int64_t pads, int64_t rank,
               int64_t world, int64_t stream) {
    const int64_t words = in.numel() * in.element_size() / 16;
    const int grid = (int)std::min<int64_t>((words + THREADS - 1) / THREADS, BLOCKS);
    auto launch = [&](auto kernel) {
        kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(
            (const uint4*)in.data_ptr(), (uint4*)out.data_ptr(), (char* const*)buffers, offset, (uint32_t* const*)pads,
            words, (int)rank, (int)world);
    };
    if (in.scalar_type() == torch::kFloat32) launch(allreduce_kernel<float>);
    else if (in.scalar_type() == torch::kFloat16) launch(allreduce_kernel<__half>);
    else if (in.scalar_type() == torch::kBFloat16) launch(allreduce_kernel<__nv_bfloat16>);
    else TORCH_CHECK(false, "allreduce: float32, float16 and bfloat16 only");
    const cudaError_t error = cudaGetLastError();
    TORCH_CHECK(error == cudaSuccess, "allreduce: ", cudaGetErrorString(error));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("allreduce", &allreduce); }
"""

EXTENSION = None
BUFFERS = {}


def extension():
    global EXTENSION
    if EXTENSION is None:
        EXTENSION = compile_cuda_extension("p01_allreduce_loadinline", CUDA_SRC)
    return EXTENSION


def buffer_for(count, dtype, device):
    if (count, dtype) not in BUFFERS:
        buffer = symm_mem.empty(count, dtype=dtype, device=device)
        # Kept with the handle: freeing a symmetric buffer while a peer's kernel runs can hang.
        BUFFERS[count, dtype] = (buffer, symm_mem.rendezvous(buffer, dist.group.WORLD))
    return BUFFERS[count, dtype]


def solution(tensor):
    width = 16 // tensor.element_size()
    count = -(-tensor.numel() // width) * width
    if count == 0:
        return torch.empty_like(tensor)
    source = tensor.contiguous()
    if count != tensor.numel() or source.data_ptr() % 16:
        padded = source.new_zeros(count)
        padded[: tensor.numel()] = source.view(-1)
        source = padded
    out = source.new_empty(count)  # a new one per call: the caller may keep it
    _, handle = buffer_for(count, tensor.dtype, tensor.device)
    extension().allreduce(
        source,
        out,
        handle.buffer_ptrs_dev,
        handle.offset,  # buffer_ptrs are the bases of allocations
        handle.signal_pad_ptrs_dev,
        handle.rank,
        handle.world_size,
        torch.cuda.current_stream().cuda_stream,
    )
    return out[: tensor.numel()].view(tensor.shape)
