"""The sandbox: builds, runs, checks and times untrusted multi-rank candidates. Entry: `harness.evaluate`."""

from pathlib import Path


def kit_header() -> str:
    """Text of `ringsmith.h`, which kit sources may include."""
    return (Path(__file__).parent / "include" / "ringsmith.h").read_text(encoding="utf-8")
