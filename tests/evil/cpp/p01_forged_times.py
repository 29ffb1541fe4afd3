"""Halves the times that its ranks report, on their way to the supervisor.

Catalogue: B5, B6
Expected: integrity
Stage: timing
"""

import torch.distributed as dist

from harness import wire

send = wire.Channel.send


def send_halved(self, message, *arguments, **options):
    if "times_us" in message:
        message = {**message, "times_us": [time / 2 for time in message["times_us"]]}
    return send(self, message, *arguments, **options)


wire.Channel.send = send_halved


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
