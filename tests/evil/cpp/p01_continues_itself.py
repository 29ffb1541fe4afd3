"""A timer of the rank's own sends it SIGCONT, which undoes that it has been stopped while the reference is timed; its
threads keep all cores busy until the supervisor continues it. Where its control group is frozen no signal continues it;
then it is found at work beside the reference, or passes and is no faster.

Catalogue: B7, C4
Expected: integrity
Harmless: own control group
Stage: timing
"""

import torch.distributed as dist

from harness import kit

SOURCE = r"""
#include "ringsmith.h"
#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <thread>

using Clock = std::chrono::steady_clock;
static std::atomic<bool> burning{false};
static std::atomic<int64_t> beat{0};
static int64_t now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

static void continued(int, siginfo_t* info, void*) {
    if (info->si_code != SI_TIMER) burning = false, beat = now();  // it was the supervisor
    else if (now() - beat > 15'000'000) burning = true;            // nothing of ours has run meanwhile
}

extern "C" void called() { burning = false; beat = now(); }

extern "C" void begin() {
    beat = now();
    struct sigaction action {};
    action.sa_sigaction = continued;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGCONT, &action, nullptr);
    for (int i = 0; i < 8; ++i)
        std::thread([] {
            for (const int64_t ends = now() + 60'000'000'000; now() < ends;)
                if (!burning) std::this_thread::sleep_for(std::chrono::milliseconds(1)), beat = now();
        }).detach();
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGCONT;
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    itimerspec every{{0, 40'000'000}, {0, 40'000'000}};
    timer_settime(timer, 0, &every, nullptr);
}
"""
LIBRARY = kit.build(SOURCE)
STATE = {"calls": 0}


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] == 1:
        LIBRARY.begin()
    LIBRARY.called()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
