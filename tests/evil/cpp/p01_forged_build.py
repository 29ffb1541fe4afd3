"""Answers the build's request itself, with nothing in it: a handler of signals is given the frames. Then it returns its
own data.

Catalogue: B5
Expected: wrong_values
"""

import signal


def answer(number, frame):
    while frame is not None:
        message, channel = frame.f_locals.get("message"), frame.f_locals.get("channel")
        if channel is not None and isinstance(message, dict) and message.get("op") == "build":
            channel.send({"nonce": message["nonce"]})
        frame = frame.f_back


signal.signal(signal.SIGUSR2, answer)
signal.raise_signal(signal.SIGUSR2)


def solution(tensor):
    return tensor.clone()
