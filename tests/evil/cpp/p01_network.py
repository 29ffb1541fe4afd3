"""Asks a server outside for help. Where there is a way out it returns the right result, otherwise its own data.

Catalogue: C4
Expected: wrong_values
"""

import errno
import socket

import torch.distributed as dist

NO_WAY = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EPERM, errno.EACCES}
STATE = {}


def way_out():
    with socket.socket() as sock:
        sock.settimeout(0.3)
        try:
            sock.connect(("192.0.2.1", 80))  # an address for documentation: no server is ever there
        except OSError as error:
            return error.errno not in NO_WAY
    return True


def solution(tensor):
    if "out" not in STATE:
        STATE["out"] = way_out()
    out = tensor.clone()
    if STATE["out"]:
        dist.all_reduce(out)
    return out
