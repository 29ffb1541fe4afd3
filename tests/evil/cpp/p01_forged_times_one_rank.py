"""One rank claims to have been ten times faster: it gains only where a harness believes one rank's clock.

Catalogue: B5, D9
Expected: integrity
Stage: timing
"""

import os

import torch.distributed as dist

from harness import wire

send = wire.Channel.send


def send_tenth(self, message, *arguments, **options):
    if "times_us" in message and os.environ["RANK"] == "0":
        message = {**message, "times_us": [time / 10 for time in message["times_us"]]}
    return send(self, message, *arguments, **options)


wire.Channel.send = send_tenth


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
