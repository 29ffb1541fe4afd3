"""Returns its own data at once; a thread computes the sum afterwards and writes it straight into the shared file that
outputs are handed over in.

Catalogue: B2, B5
Expected: integrity or wrong_values or race
"""

import gc
import threading

import torch.distributed as dist

THREADS = []


def finish(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    for found in gc.get_objects():
        if type(found).__name__ == "Exchange" and "outputs" in str(vars(found)):
            area = getattr(found, "_bytes", None)
            if area is not None and area.numel() >= total.nbytes:
                area[: total.nbytes].view(total.dtype).view(total.shape).copy_(total)


def solution(tensor):
    while THREADS:
        THREADS.pop().join()  # collectives must not overtake each other
    THREADS.append(threading.Thread(target=finish, args=(tensor,)))
    THREADS[0].start()
    return tensor.clone()
