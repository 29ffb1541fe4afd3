"""Spins for ever in C++ with every signal blocked or ignored, so that nobody learns where.

Catalogue: D7
Expected: deadlock or timeout
"""

import signal

from harness import kit

SOURCE = r"""
extern "C" void spin() {
    for (volatile int i = 0;; i = i + 1) {}
}
"""

LIB = kit.build(SOURCE)


def solution(tensor):
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < 32:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    LIB.spin()
    return tensor.clone()
