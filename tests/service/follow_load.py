"""How a server bears clients that follow many live runs: `python -m tests.service.follow_load`.

Scripted runs think and call tools that cost nothing; each client follows every run and comes back where its connection
breaks, and one more asks the API for what a page shows. Prints a table; exit code 1 if an event was lost or repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import httpx

from tests.service.scripts import turn, write
from tests.service.server import Server

_COME_S = 5.0
"""Until all clients are there."""
_ASK_S = 0.25
"""Between two calls of the API."""


@dataclass
class Client:
    """What one has received: the numbers of each run's events, in order."""

    received: dict[str, list[int]] = field(default_factory=dict)
    connections: int = 0

    async def follow(self, http: httpx.AsyncClient, url: str, run: str, break_s: float | None) -> None:
        got = self.received.setdefault(run, [])
        await asyncio.sleep(random.uniform(0, _COME_S))
        while True:
            headers = {"Last-Event-ID": str(got[-1])} if got else {}
            until = time.monotonic() + random.uniform(0.5, 1.5) * break_s if break_s else None
            try:
                self.connections += 1
                async with http.stream("GET", f"{url}/runs/{run}/stream", headers=headers) as answer:
                    if answer.status_code == 204:
                        return
                    if answer.status_code == 200 and await self._read(answer, got, until):
                        return
            except httpx.TransportError:
                pass
            await asyncio.sleep(random.uniform(0.1, 0.5))

    @staticmethod
    async def _read(answer: httpx.Response, got: list[int], until: float | None) -> bool:
        """Whether the run is over."""
        number = 0
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: ") and number:
                got.append(number)
                number = 0
            elif line == "event: end":
                return True
            if until is not None and not number and time.monotonic() > until:
                return False
        return False


@dataclass
class Seen:
    """What was measured, of all rounds."""

    clients: list[Client]
    took: list[float] = field(default_factory=list)
    rss: list[tuple[int, int, int]] = field(default_factory=list)
    """Of the server at the beginning, in the middle and at the end of each round."""
    restarted_s: float = 0.0
    late: int = 0
    """Streams that did not end."""


async def measure(args: argparse.Namespace, server: Server, scripts: Path) -> int:
    server.start()
    http = httpx.AsyncClient(timeout=httpx.Timeout(60.0), limits=httpx.Limits(max_connections=None))
    seen = Seen([Client() for _ in range(args.clients)])
    for _ in range(args.rounds):
        await _round(args, server, scripts, http, seen)
    await http.aclose()
    return _report(args, server, seen)


async def _round(args: argparse.Namespace, server: Server, scripts: Path, http: httpx.AsyncClient, seen: Seen) -> None:
    """Other runs than before, from their beginning until they are cancelled."""
    asked = {
        "problem": 1, "platform": "cpu", "world_size": 2, "strategy": "loop", "steps": 1_000_000,
        "model": f"scripted:{scripts}?think={args.think}",
    }  # fmt: skip
    runs = []
    for _ in range(args.runs):
        answer = await http.post(f"{server.api}/runs", json=asked)
        answer.raise_for_status()
        runs.append(answer.json()["run_id"])
    while (await http.get(f"{server.api}/runs", params={"state": "running"})).json()["total"] < args.runs:
        await asyncio.sleep(0.5)
    start = server.rss_bytes
    followers = [
        asyncio.create_task(client.follow(http, server.api, run, args.reconnect or None))
        for client in seen.clients
        for run in runs
    ]
    asker = ProcessPoolExecutor(1, get_context("spawn"))
    asking = asyncio.wrap_future(asker.submit(ask, server.api, args.seconds))
    began = time.monotonic()
    await asyncio.sleep(args.seconds / 2)
    middle = server.rss_bytes
    if args.restart:
        before = time.monotonic()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        seen.restarted_s = time.monotonic() - before
    await asyncio.sleep(max(0.0, began + args.seconds - time.monotonic()))
    seen.rss.append((start, middle, server.rss_bytes))
    seen.took += await asking
    asker.shutdown()
    for run in runs:
        await http.post(f"{server.api}/runs/{run}/cancel", json={})
    done, late = await asyncio.wait(followers, timeout=120)
    for task in late:
        task.cancel()
    if not args.restart:
        assert all(task.exception() is None for task in done)
    seen.late += len(late)


def ask(api: str, seconds: float) -> list[float]:
    """What a page shows, now and again, in a process of its own: how long each answer took."""
    took: list[float] = []
    until = time.monotonic() + seconds
    with httpx.Client(timeout=60.0) as http:
        runs = [line["run_id"] for line in http.get(f"{api}/runs", params={"limit": 100}).json()["items"]]
        while time.monotonic() < until:
            run = random.choice(runs)
            paths = ("/runs?limit=50", f"/runs/{run}", f"/runs/{run}/attempts?limit=50", "/runs?state=running")
            before = time.monotonic()
            try:
                http.get(f"{api}{random.choice(paths)}").raise_for_status()
                took.append(time.monotonic() - before)
            except httpx.TransportError:
                pass
            time.sleep(_ASK_S)
    return took


def _report(args: argparse.Namespace, server: Server, seen: Seen) -> int:
    clients, took, late = seen.clients, seen.took, seen.late
    written = {}
    for path in sorted(server.runs.glob("*/events.jsonl")):
        lines = path.read_bytes().splitlines()
        assert all(json.loads(line) for line in lines)
        written[path.parent.name] = len(lines)
    lost = repeated = 0
    for client in clients:
        for run, count in written.items():
            got = client.received.get(run, [])
            lost += len(set(range(1, count + 1)) - set(got))
            repeated += len(got) - len(set(got)) + (got != sorted(got))
    took.sort()
    megabytes = ["{:.0f}, {:.0f}, {:.0f} MB".format(*(value / 1e6 for value in values)) for values in seen.rss]
    per_client = [sum(map(len, client.received.values())) for client in clients]
    rows = {
        "runs, clients, seconds": f"{args.runs}, {args.clients}, {args.seconds:.0f}"
        + (f", killed in the middle and back after {seen.restarted_s:.1f} s" if args.restart else ""),
        "events written": f"{(events := sum(written.values()))} ({events / args.seconds / args.rounds:.1f} a second)",
        "received per client": f"{min(per_client)} to {max(per_client)}",
        "connections": str(sum(client.connections for client in clients)),
        "lost": str(lost),
        "repeated": str(repeated),
        "streams that did not end": str(late),
        "API calls": str(len(took)),
        "p50, p99, longest": ", ".join(f"{_quantile(took, q) * 1e3:.1f} ms" for q in (0.5, 0.99, 1.0)),
        "memory at start, middle, end": "; ".join(megabytes),
    }
    for name, value in rows.items():
        print(f"{name:<30} {value}")
    return int(bool(lost or repeated or late))


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rounds", type=int, default=1, help="So often, with other runs, in the same server.")
    parser.add_argument("--think", type=float, default=2.0, help="Seconds of a model's reply.")
    parser.add_argument("--reconnect", type=float, default=60.0, help="Mean seconds of a connection; 0: for ever.")
    parser.add_argument("--restart", action="store_true", help="kill -9 in the middle, and start again.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scripts, runs = Path(folder) / "scripts", Path(folder) / "runs"
        turns = int(2 * args.seconds / args.think) + 100
        calls = (
            ("write_candidate", {"source": f"# {n}\n"}) if n % 3 else ("read", {"what": "reference"})
            for n in range(turns)
        )
        write(scripts, "default", [turn(call) for call in calls])
        server = Server(runs, "--allow-files", "--concurrency", str(args.runs))
        try:
            return asyncio.run(measure(args, server, scripts))
        finally:
            if server.process is not None:
                server.stop()
            log = server.log.read_text().splitlines()
            print("\n".join(line for line in log if "serving on" not in line and "ending:" not in line)[-2000:])


if __name__ == "__main__":
    raise SystemExit(main())
