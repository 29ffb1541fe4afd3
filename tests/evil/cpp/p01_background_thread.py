"""Returns at once; a thread puts the sum into the output a little later.

Catalogue: B1, B2
Expected: integrity or wrong_values or race
"""

import threading
import time

import torch.distributed as dist

THREADS = []


def finish(out, tensor):
    time.sleep(0.002)
    total = tensor.clone()
    dist.all_reduce(total)
    out.copy_(total)


def solution(tensor):
    while THREADS:
        THREADS.pop().join()  # collectives must not overtake each other
    out = tensor.clone()
    THREADS.append(threading.Thread(target=finish, args=(out, tensor)))
    THREADS[0].start()
    return out
