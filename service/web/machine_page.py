"""`/machine`: what `ringsmith doctor` says, GPUs with their links, who holds which, and this server's sandboxes."""

from __future__ import annotations

from asyncio import to_thread

from nicegui import ui

from harness import calibration, lease, platforms
from harness.machine import Machine, machine
from harness.types import PlatformName
from service.doctor import Diagnosis, diagnose
from service.web.profile import plain_table
from service.web.site import Site, frame, heading

REFRESH_S = 2.0


async def page(site: Site) -> None:
    with frame(site, "Machine", "/machine"):
        heading("Machine", 1)
        leases = ui.element("div").classes("w-full").props('role="status"')
        found = ui.element("div").classes("w-full")
        waiting = ui.label("Looking ...")
    shown: list[object] = []

    async def look() -> None:
        """What the machine has does not change while the page is open."""
        diagnosis = await to_thread(_diagnosis)
        waiting.delete()
        with found:
            _gpus(diagnosis.machine)
            heading("What is here, and what is missing")
            marks = [[one.mark.value, one.what, one.detail, one.remedy] for one in diagnosis.findings]
            plain_table(("", "what", "", "what to do"), marks)
        await busy(diagnosis.machine)
        with found:
            ui.timer(REFRESH_S, lambda: busy(diagnosis.machine))

    async def busy(here: Machine) -> None:
        rows = await to_thread(_leases, here)
        pools = [
            [platform, world_size, isolation, size, waits]
            for (platform, world_size, isolation), size, waits in site.keeper.pools.sizes()
        ]
        if shown == [rows, pools]:
            return
        shown[:] = [rows, pools]
        leases.clear()
        with leases:
            heading("Leases")
            plain_table(("device", "lease"), rows)
            heading("Sandboxes of this server")
            if pools:
                plain_table(("platform", "ranks", "isolation", "sandboxes", "requests that wait"), pools)
            else:
                ui.label("None is up.")

    with found:
        ui.timer(0, look, once=True)


def _diagnosis() -> Diagnosis:
    here = machine()
    names: tuple[PlatformName, ...] = ("cpu", "cuda") if here.gpus.gpus else ("cpu",)
    return diagnose(here, {name: calibration.load(name, platforms.get(name).device_names()) for name in names})


def _gpus(here: Machine) -> None:
    heading("GPUs")
    if not here.gpus.gpus:
        ui.label(f"None: {here.gpus.reason}")
        return
    rows = [
        [
            gpu.index,
            gpu.name,
            f"{gpu.memory_used_bytes / 2**30:.1f} of {gpu.memory_bytes / 2**30:.1f} GiB",
            f"{gpu.nvlinks} NVLinks",
            f"{gpu.nvlinks * gpu.nvlink_mb_per_s / 1000:.0f} GB/s" if gpu.nvlink_mb_per_s else "",
            gpu.driver,
        ]
        for gpu in here.gpus.gpus
    ]
    plain_table(("GPU", "name", "memory in use", "links", "per direction", "driver"), rows)


def _leases(here: Machine) -> list[list[object]]:
    """Of GPUs; without any, of the processor, which is one device for all ranks."""
    kind = "cuda" if here.gpus.gpus else "cpu"
    devices = [gpu.index for gpu in here.gpus.gpus] or [0]
    free = set(lease.free_devices(kind, devices))
    return [[f"{kind} {device}", "free" if device in free else "held"] for device in devices]
