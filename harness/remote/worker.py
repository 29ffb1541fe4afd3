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
from pathlib import Path

from pydantic import TypeAdapter

from harness.evaluate import Sandbox
from harness.remote.messages import Job, SessionSettings
from harness.remote.work import perform
from harness.types import Stage, to_json
from harness.wire import Channel, ChannelClosedError


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    settings = SessionSettings.model_validate(channel.receive())
    jobs: TypeAdapter[Job] = TypeAdapter(Job)

    def on_stage(stage: Stage) -> None:
        channel.send({"stage": str(stage)})

    with (
        contextlib.suppress(ChannelClosedError),
        Sandbox(settings.platform, settings.world_size, settings.limits, settings.isolation) as sandbox,
    ):
        while True:
            asked = channel.receive()
            reply = perform(sandbox, jobs.validate_python(asked["job"]), Path(asked["folder"]), on_stage)
            channel.send({"reply": to_json(reply)})


def _end_with_the_server() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
