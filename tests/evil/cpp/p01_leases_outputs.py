"""Takes a lease on the file with its outputs before it answers: the kernel would hold up whoever opens it for 45 s.

Catalogue: B5
Expected: shape_error
Stage: correctness
"""

import fcntl
import os
import signal
import sys

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def takes_over(answer):
    """Answers the request to load, and from then on every other one with what `answer` makes of the harness's reply."""
    frame, rank, loop = sys._getframe(1), None, None
    while frame is not None:
        known = frame.f_locals
        rank = known["self"] if type(known.get("self")).__name__ == "CandidateRank" else rank
        loop = known if "handlers" in known and "channel" in known else loop
        frame = frame.f_back
    if rank is None:  # the build
        return
    channel, message = loop["channel"], loop["message"]
    rank._solution = solution
    channel.send({"tripped": [], "nonce": message["nonce"]})
    while True:
        message = channel.receive()
        reply = answer(message, loop["handlers"][message["op"]](message), channel, rank)
        if reply is not None:
            channel.send({**reply, "looked": [], "nonce": message["nonce"]})


HELD = []


def answer(message, reply, channel, rank):
    if message["op"] == "call":
        exchange = rank._state.exchange["outputs"]
        exchange._bytes = None  # a file that somebody has mapped for writing cannot be leased
        HELD.append(os.open(exchange._path, os.O_RDWR))
        fcntl.fcntl(HELD[-1], fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return reply


signal.signal(signal.SIGIO, signal.SIG_IGN)
takes_over(answer)
