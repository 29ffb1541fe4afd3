"""Only one rank prints: on the others there is no standard output, or one that is closed; on that one it is an object
that cannot be flushed.
"""

import os
import sys

import torch.distributed as dist


class Tee:
    def __init__(self, *to):
        self.to = to

    def write(self, text):
        for one in self.to:
            one.write(text)


RANK = int(os.environ.get("RANK", 0))
if RANK == 0:
    sys.stdout = Tee(sys.stdout)
elif RANK == 1:
    sys.stdout = None
else:
    with open(os.devnull, "w") as sys.stdout:
        print("not seen")


def solution(tensor):
    if RANK == 0:
        print("a call")
    out = tensor.clone()
    dist.all_reduce(out)
    return out
