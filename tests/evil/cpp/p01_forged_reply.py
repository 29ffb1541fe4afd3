"""Replaces nothing: it reads the request, nonce included, out of its callers' variables, which a handler of signals is
given, and answers it itself, with times that it made up, before the harness does.

Catalogue: B5
Expected: integrity
Stage: timing
"""

import signal

import torch.distributed as dist

ANSWERED = set()


def answer(number, frame):
    while frame is not None:
        message, channel = frame.f_locals.get("message"), frame.f_locals.get("channel")
        if channel is not None and isinstance(message, dict) and message.get("op") == "time":
            nonce, plan = message["nonce"], message["plan"]
            if nonce not in ANSWERED:
                ANSWERED.add(nonce)
                channel.send({"times_us": [1.0] * plan["samples"], "host_us": [], "nonce": nonce})
        frame = frame.f_back


signal.signal(signal.SIGUSR2, answer)


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    signal.raise_signal(signal.SIGUSR2)
    return out
