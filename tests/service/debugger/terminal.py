"""A real terminal for a program under test: a pty, and an emulator that knows what its screen shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Sequence

import pyte


class _Screen(pyte.Screen):
    """Modern private sequences (kitty's keys, synchronised updates) share letters with old public ones."""

    def report_device_status(self, mode: int, private: bool = False, **kwargs: object) -> None:
        pass

    def select_graphic_rendition(self, *attrs: int, private: bool = False, **kwargs: object) -> None:
        if not private:
            super().select_graphic_rendition(*attrs)


class Terminal:
    """Ends what runs in it with the `with` block."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], columns: int = 80, rows: int = 24) -> None:
        self.screen = _Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._lock, self._over = threading.Lock(), threading.Event()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        environment = {**environment, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, preexec_fn=own_terminal
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    @property
    def text(self) -> str:
        with self._lock:
            return "\n".join(line.rstrip() for line in self.screen.display)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait(self, *texts: str, seconds: float = 120) -> str:
        """Until all of them are on the screen."""
        return self.until(lambda shown: all(text in shown for text in texts), seconds, f"wanted {texts}")

    def gone(self, text: str, seconds: float = 120) -> str:
        return self.until(lambda shown: text not in shown, seconds, f"{text!r} is to go")

    def until(self, true: Callable[[str], bool], seconds: float, why: str) -> str:
        deadline = time.monotonic() + seconds
        while not true(shown := self.text):
            assert time.monotonic() < deadline, f"{why}; the screen shows\n{shown}"
            time.sleep(0.02)
        return shown

    def hang_up(self) -> int:
        """As when a connection breaks; the exit code."""
        if not self._over.is_set():
            self._over.set()
            self._reader.join()
            os.close(self._master)  # the last one: the kernel sends SIGHUP
        return self.process.wait(timeout=60)

    def ended(self) -> int:
        """The exit code of a program that ends by itself; the screen is what it left."""
        code = self.process.wait(timeout=120)
        self._reader.join(timeout=60)
        return code

    def _read(self) -> None:
        while not self._over.is_set():
            if not select.select([self._master], [], [], 0.02)[0]:
                continue
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                return  # the other side is closed
            if not data:
                return
            with self._lock:
                self._stream.feed(data)
