"""Reports a nanosecond for every call.

Catalogue: B6
Expected: integrity
Stage: timing
"""

import torch.distributed as dist

from harness import wire

send = wire.Channel.send


def send_tiny(self, message, *arguments, **options):
    if "times_us" in message:
        message = {**message, "times_us": [0.001 for _ in message["times_us"]]}
    return send(self, message, *arguments, **options)


wire.Channel.send = send_tiny


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
