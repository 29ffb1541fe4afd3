"""Trap: threads of its own, alive between calls. Right, because they are made once, and every call waits until they
have done its work.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {
struct Pool {
    std::mutex mutex;
    std::condition_variable todo, done;
    const float* parts = nullptr;
    float* out = nullptr;
    int64_t n = 0, round = 0;
    int world = 0, busy = 0;

    void work(int id, int count) {
        for (int64_t seen = 0;;) {
            std::unique_lock<std::mutex> lock(mutex);
            todo.wait(lock, [&] { return round != seen; });
            seen = round;
            lock.unlock();
            for (int64_t i = n * id / count; i < n * (id + 1) / count; ++i) {
                float sum = parts[i];
                for (int r = 1; r < world; ++r) sum += parts[r * n + i];
                out[i] = sum;
            }
            lock.lock();
            if (--busy == 0) done.notify_one();
        }
    }
};
constexpr int THREADS = 3;
Pool* pool = nullptr;  // never freed: its threads outlive everything
}  // namespace

extern "C" void sum_parts(const float* parts, float* out, int64_t n, int world) {
    if (!pool) {
        pool = new Pool;
        for (int id = 0; id < THREADS; ++id) std::thread([id] { pool->work(id, THREADS); }).detach();
    }
    std::unique_lock<std::mutex> lock(pool->mutex);
    pool->parts = parts, pool->out = out, pool->n = n, pool->world = world, pool->busy = THREADS, ++pool->round;
    pool->todo.notify_all();
    pool->done.wait(lock, [] { return pool->busy == 0; });
}
"""

LIB = kit.build(SOURCE)
BUFFERS = {}


def solution(tensor):
    if tensor.shape not in BUFFERS:
        BUFFERS[tensor.shape] = kit.symmetric(tensor.shape, torch.float32)
    buf, world = BUFFERS[tensor.shape], kit.world_size()
    buf.local.copy_(tensor)
    buf.barrier()
    parts, out = torch.stack([buf.peer(r) for r in range(world)]), torch.empty(tensor.shape)
    buf.barrier()
    LIB.sum_parts(parts, out, tensor.numel(), world)
    return out.to(tensor.dtype)
