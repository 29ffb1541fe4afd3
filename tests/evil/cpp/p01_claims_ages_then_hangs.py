"""Runs the rank's loop itself, claims that its first timed calls took twenty minutes each, and never answers again:
what may pass before a block counts as hanging follows from the times before.

Catalogue: B5, D7
Expected: integrity
Stage: timing
"""

import sys
import time

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


BLOCKS = []


def answer(message, reply, channel, rank):
    if message["op"] == "time":
        BLOCKS.append(message["op"])
        if len(BLOCKS) > 1:
            time.sleep(1e6)
        reply["times_us"] = [1.2e9] * len(reply["times_us"])
    return reply


takes_over(answer)
