"""A torch extension through pybind11: slow to build, and built once."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch.utils.cpp_extension import load_inline

CPP = "void gather(torch::Tensor out, int64_t buffers, int64_t offset, int64_t bytes, int64_t world, int64_t stream);"
CUDA = r"""
#include <cuda_runtime.h>
#include <torch/extension.h>

__global__ void gather_kernel(char* out, char* const* buffers, int64_t offset, int64_t bytes, int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    for (int r = 0; r < world; ++r)
        for (int64_t i = first; i < bytes; i += stride) out[r * bytes + i] = buffers[r][offset + i];
}

void gather(torch::Tensor out, int64_t buffers, int64_t offset, int64_t bytes, int64_t world, int64_t stream) {
    gather_kernel<<<128, 512, 0, (cudaStream_t)stream>>>(
        (char*)out.data_ptr(), (char* const*)buffers, offset, bytes, (int)world);
    TORCH_CHECK(cudaGetLastError() == cudaSuccess, "gather: the launch failed");
}
"""
STATES = {}
EXTENSION = None


def solution(tensor):
    global EXTENSION
    if EXTENSION is None:
        EXTENSION = load_inline(name="p02_load_inline", cpp_sources=CPP, cuda_sources=CUDA, functions=["gather"])
    key = (tensor.shape, tensor.dtype)
    if key not in STATES:
        shared = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        STATES[key] = (shared, symm_mem.rendezvous(shared, dist.group.WORLD))
    shared, handle = STATES[key]
    out = torch.empty((handle.world_size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    shared.copy_(tensor)
    handle.barrier(channel=0)
    EXTENSION.gather(
        out,
        handle.buffer_ptrs_dev,
        handle.offset,
        tensor.numel() * tensor.element_size(),
        handle.world_size,
        torch.cuda.current_stream().cuda_stream,
    )
    handle.barrier(channel=0)
    return out
