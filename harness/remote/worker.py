"""One session's process on a node: a Sandbox that does jobs one after another. Imports no torch.

Started by `sessions.py` with a socket (messages as in `wire.py`) and a pipe on stdin that never says anything: when it
closes, the server is gone, and this process goes at once. Its ranks follow it, as they follow any supervisor.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path

from pydantic import TypeAdapter

from harness.allowance import Allowance
from harness.evaluate import Sandbox
from harness.remote.messages import Job, SessionSettings
from harness.remote.work import perform
from harness.types import Stage, to_json
from harness.wire import Channel, ChannelClosedError

_TELL_S = 0.25
"""How often the server hears what a job has used so far."""


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    begun = channel.receive()
    settings = SessionSettings.model_validate(begun["settings"])
    jobs: TypeAdapter[Job] = TypeAdapter(Job)

    def on_stage(stage: Stage) -> None:
        channel.send({"stage": str(stage)})

    with (
        contextlib.suppress(ChannelClosedError),
        Sandbox(
            settings.platform, settings.world_size, settings.limits, settings.isolation, begun["devices"]
        ) as sandbox,
    ):
        while True:
            asked = channel.receive()
            if "job" not in asked:  # a cancel that came when the job was done
                continue
            job, folder = jobs.validate_python(asked["job"]), Path(asked["folder"])
            reply = perform(sandbox, job, folder, on_stage, _allowance(channel))
            channel.send({"reply": to_json(reply)})
            if reply.fault is not None and not sandbox.usable():
                break  # the next process is given other devices


def _allowance(channel: Channel) -> Allowance:
    """Of a job. The sandbox looks at it wherever it waits: there the server is told, and heard."""
    told = time.monotonic()

    def over() -> str | None:
        nonlocal told
        try:
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                channel.send({"device_s": allowance.device_s, "waited_s": allowance.waited_s})
            return "cancelled" if "cancel" in channel.receive(0) else None
        except TimeoutError:
            return None
        except ChannelClosedError:
            return "cancelled"

    allowance = Allowance(over)
    return allowance


def _end_with_the_server() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
