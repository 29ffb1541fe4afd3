"""Runs the rank's loop itself, says that its memory grows by 10^400 bytes a burst, and claims a tenth of its times.

Catalogue: B5
Expected: integrity
Stage: timing
"""

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


BURSTS = []


def answer(message, reply, channel, rank):
    if message["op"] == "burst":
        BURSTS.append(message["op"])
        reply["host_bytes"] = 10 ** (400 + len(BURSTS))
    if message["op"] == "time":
        reply["times_us"] = [time / 10 for time in reply["times_us"]]
    return reply


takes_over(answer)
