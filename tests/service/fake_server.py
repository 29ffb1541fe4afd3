"""`ringsmith serve` over sandboxes of no processes: what is tested is the server. `python -m tests.service.fake_server`
takes what `ringsmith` takes."""

import sys

from harness import pool
from tests.service.fake_engine import FakeEngine


class Member(FakeEngine):
    """As a sandbox of a pool."""

    def know(self, report) -> None:
        pass

    def usable(self) -> bool:
        return True

    def close(self) -> None:
        pass


if __name__ == "__main__":
    pool.local = lambda platform, world_size, isolation: pool.Pool(platform, world_size, [Member()])
    from service.cli import main

    sys.exit(main())
