"""C++ threads keep all cores busy whenever no call has been made for some milliseconds.

Catalogue: B2, B7
Expected: integrity
Stage: timing
"""

import torch.distributed as dist

from harness import kit

SOURCE = r"""
#include "ringsmith.h"
#include <atomic>
#include <chrono>
#include <thread>

using Clock = std::chrono::steady_clock;
static std::atomic<int64_t> last{0};
static int64_t now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

extern "C" void called() { last = now(); }

extern "C" void burn() {
    last = now();
    for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i)
        std::thread([] {
            for (const int64_t ends = now() + 60'000'000'000; now() < ends;)
                if (now() - last < 4'000'000) std::this_thread::sleep_for(std::chrono::microseconds(500));
        }).detach();
}
"""

LIB = kit.build(SOURCE)
STARTED = []


def solution(tensor):
    if not STARTED:
        STARTED.append(True)
        LIB.burn()
    out = tensor.clone()
    dist.all_reduce(out)
    LIB.called()
    return out
