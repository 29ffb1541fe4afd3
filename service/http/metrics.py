"""What Prometheus is told, counted when it asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from harness import lease, machine
from service.http.context import Context
from service.jobs.tables import JobRow, RunIndex


def exposition(here: Context) -> tuple[bytes, str]:
    """The text and its media type."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Collector(here))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Collector(Collector):
    def __init__(self, here: Context) -> None:
        self._here = here

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        keeper = self._here.keeper
        yield from self._counted()
        queue = GaugeMetricFamily("ringsmith_runs_waiting", "Runs that wait for their turn.", value=keeper.runs.waiting)
        yield queue
        yield GaugeMetricFamily("ringsmith_runs_led", "Runs that this server leads.", value=keeper.runs.busy)
        yield GaugeMetricFamily("ringsmith_streams", "Clients that follow a run.", value=self._here.follower.clients)
        yield from self._pools()
        yield self._leases()

    def _counted(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("ringsmith_jobs", "Jobs by kind and state.", labels=("kind", "state"))
        states = GaugeMetricFamily("ringsmith_runs", "Runs by state.", labels=("state",))
        verdicts = CounterMetricFamily("ringsmith_verdicts", "Runs that have ended, by verdict.", labels=("verdict",))
        spend = {
            name: CounterMetricFamily(f"ringsmith_{name}", about, labels=("platform", "model"))
            for name, about in (
                ("device_seconds", "Seconds x devices under lease (GPU-seconds on CUDA)."),
                ("spend_usd", "US dollars paid to providers."),
                ("tokens", "Tokens, input and output."),
                ("steps", "Replies of models."),
            )
        }
        with self._here.keeper.store.reads() as session:
            for kind, state, count in session.execute(
                select(JobRow.kind, JobRow.state, func.count()).group_by(JobRow.kind, JobRow.state)
            ):
                jobs.add_metric((kind, state), count)
            for state, count in session.execute(select(RunIndex.state, func.count()).group_by(RunIndex.state)):
                states.add_metric((state,), count)
            ended = select(RunIndex.verdict, func.count()).where(RunIndex.state == "finished")
            for verdict, count in session.execute(ended.group_by(RunIndex.verdict)):
                verdicts.add_metric((verdict or "none",), count)
            sums = (func.sum(c) for c in (RunIndex.device_s, RunIndex.usd, RunIndex.tokens, RunIndex.steps))
            grouped = select(RunIndex.platform, RunIndex.model, *sums).group_by(RunIndex.platform, RunIndex.model)
            for platform, model, *values in session.execute(grouped):
                for family, value in zip(spend.values(), values, strict=True):
                    family.add_metric((platform, model), float(value or 0))
        yield from (jobs, states, verdicts, *spend.values())

    def _pools(self) -> Iterator[Metric]:
        labels = ("platform", "world_size", "isolation")
        sandboxes = GaugeMetricFamily("ringsmith_sandboxes", "Sandboxes that measure.", labels=labels)
        waiting = GaugeMetricFamily("ringsmith_requests_waiting", "Requests that wait for a sandbox.", labels=labels)
        for (platform, world_size, isolation), size, wait in self._here.keeper.pools.sizes():
            sandboxes.add_metric((platform, str(world_size), isolation), size)
            waiting.add_metric((platform, str(world_size), isolation), wait)
        yield from (sandboxes, waiting)

    def _leases(self) -> Metric:
        """Of anybody on this machine."""
        leased = GaugeMetricFamily("ringsmith_devices_leased", "Devices under lease, by kind.", labels=("kind",))
        for kind, devices in (("cpu", [0]), ("cuda", list(range(len(machine.gpus()))))):
            out = {entry.device for entry in lease.quarantined() if entry.kind == kind}
            free = lease.free_devices(kind, devices)
            leased.add_metric((kind,), len(set(devices) - out - set(free)))
        return leased
