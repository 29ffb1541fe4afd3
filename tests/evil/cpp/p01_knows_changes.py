"""Finds the ring of timed inputs and the few elements of it that are to change; keeps the sum of each input and
exchanges only those.

Catalogue: A3, B5
Expected: integrity or race
Stage: timing
"""

import gc

import torch.distributed as dist

STATE = {"calls": 0, "ring": None}
KEPT = {}


def ring():
    for found in gc.get_objects():
        if type(found).__name__ == "CandidateRank":
            return found._state.ring
    return None


def solution(tensor):
    r = STATE["ring"] = ring() if STATE["calls"] < 40 else STATE["ring"]
    STATE["calls"] += 1
    step = None
    if r is not None and r._steps and r.sample >= 0:
        step = next((s for s in r._steps[r.sample] if s[0].data_ptr() == tensor.data_ptr()), None)
    if step is None:
        out = tensor.clone()
        dist.all_reduce(out)
        return out
    key = tensor.data_ptr()
    kept = KEPT.get(key)
    if kept is None:
        given = step[1].view(tensor.dtype).view(tensor.shape).clone()
        dist.all_reduce(given)
        KEPT[key] = kept = [given, given.clone(), None]
    base, out, former = kept
    if former is not None:
        out.view(-1)[former] = base.view(-1)[former]
    places = step[2]
    few = tensor.reshape(-1)[places]
    dist.all_reduce(few)
    out.view(-1)[places] = few
    kept[2] = places
    return out
