"""Trap: the first call takes seconds. Right, because it compiles; the source is made in the call, so nothing could be
built ahead.
"""

import torch

from harness import kit

LIBRARIES, BUFFERS = {}, {}


def library(world):
    if world not in LIBRARIES:
        kernels = "\n".join(
            f"template <> struct Step<{i}> {{ static void run(const Words& v, long& s) {{"
            f" for (auto& m : v) for (auto& e : m) s += e.first * {i} + e.second.size();"
            f" Step<{i - 1}>::run(v, s); }} }};"
            for i in range(1, 120)
        )
        source = f"""
#include "ringsmith.h"
#include <map>
#include <string>
#include <vector>
using Words = std::vector<std::map<int, std::string>>;
template <int> struct Step {{ static void run(const Words&, long&) {{}} }};
{kernels}
extern "C" long steps(int n) {{
    Words v(n);
    long s = 0;
    Step<119>::run(v, s);
    return s;
}}
extern "C" void gather(const char* in, char* out, char* const* buffers, uint32_t* const* signals, int64_t bytes,
                       int rank) {{
    std::memcpy(buffers[rank], in, bytes);
    rs_barrier(signals, rank, {world}, 0);
    for (int r = 0; r < {world}; ++r) std::memcpy(out + r * bytes, buffers[r], bytes);
    rs_barrier(signals, rank, {world}, 0);
}}
"""
        LIBRARIES[world] = kit.build(source)
    return LIBRARIES[world]


def solution(tensor):
    key, lib = (tensor.shape, tensor.dtype), library(kit.world_size())
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf = BUFFERS[key]
    out = torch.empty((kit.world_size(), *tensor.shape), dtype=tensor.dtype)
    lib.gather(tensor, out, buf.ptrs, buf.signals, tensor.numel() * tensor.element_size(), kit.rank())
    return out
