"""Each call makes an object that refers to itself through a closure and holds the call's workspace: only the garbage
collector frees it, which looks like memory that grows with every call.
"""

import torch.distributed as dist


class Step:
    def __init__(self, tensor):
        self.workspace = tensor.clone()
        self.run = lambda: self.reduce()

    def reduce(self):
        dist.all_reduce(self.workspace)
        return self.workspace.clone()


def solution(tensor):
    return Step(tensor).run()
