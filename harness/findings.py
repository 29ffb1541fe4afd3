"""What all ranks' facts about wrong values come to: one finding for what is the same on several ranks. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.diagnosis import name_ranks
from harness.types import Finding

ANY = "any other rank"
_MOST = 6
"""Findings of one evaluation; single places of one finding."""


def merge(facts: Sequence[Sequence[dict[str, Any]]]) -> tuple[Finding, ...]:
    """Of facts by rank, as `harness.explainer` makes them. Certain findings come first."""
    kinds: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = {}
    for rank, found in enumerate(facts):
        for fact in found:
            key = (fact["cause"], fact["output"], fact["says"], fact["certain"])
            kinds.setdefault(key, []).append((rank, fact))
    merged = [finding for places in kinds.values() for finding in _merge_kind(places, len(facts))]
    return tuple(sorted(merged, key=lambda finding: not finding.certain)[:_MOST])


def _merge_kind(places: list[tuple[int, dict[str, Any]]], world_size: int) -> list[Finding]:
    """Facts that say the same of places and peers that may differ."""
    pattern = _pattern(places, world_size)
    if pattern is not None:
        return [_finding(places[0][1], pattern, places[0][0])]
    if all(fact["peer"] is not None and fact["text"] == places[0][1]["text"] for _, fact in places):
        return [_finding(places[0][1], _by_peers(places, world_size), places[0][0])]
    groups: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = {}
    for rank, fact in places:
        groups.setdefault((fact["text"], fact["peer"]), []).append((rank, fact))
    texts = [
        f"{_who([rank for rank, _ in same], world_size)}: {_what(same[0][1], same[0][1]['text'], same[0][1]['peer'])}"
        for same in groups.values()
    ]
    more = f"; and {len(texts) - _MOST} more such places" if len(texts) > _MOST else ""
    return [_finding(places[0][1], "; ".join(texts[:_MOST]) + more, places[0][0])]


def _by_peers(places: list[tuple[int, dict[str, Any]]], world_size: int) -> str:
    """The same of several peers, at the same place of several ranks."""
    peers: dict[int, list[int]] = {}
    for rank, fact in places:
        peers.setdefault(rank, []).append(fact["peer"])
    fact, where = places[0][1], places[0][1]["text"]
    if len(peers) == world_size and all(set(of) == set(range(world_size)) - {r} for r, of in peers.items()):
        return f"every rank r: {_what(fact, where, ANY)}"
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, of in peers.items():
        groups.setdefault(tuple(of), []).append(rank)
    return "; ".join(
        f"{_who(ranks, world_size)}: {_what(fact, where, ' and rank '.join(map(str, of)))}"
        for of, ranks in groups.items()
    )


def _pattern(places: list[tuple[int, dict[str, Any]]], world_size: int) -> str | None:
    """The one sentence that says it for every rank r, or every chunk c, if there is one and several places."""
    ranks = {rank for rank, _ in places}
    texts, peers = {fact["text"] for _, fact in places}, {fact["peer"] for _, fact in places}
    if len(places) < 2 or (len(texts) == 1 and len(peers) == 1):
        return None
    fact = places[0][1]
    if len(texts) == 1 and len(ranks) == len(places) == world_size:
        by = _step([(rank, other["peer"]) for rank, other in places], world_size)
        return None if by is None else f"every rank r: {_what(fact, fact['text'], _relative('r', by))}"
    if any(other["chunk"] is None or other["axis"] != fact["axis"] for _, other in places):
        return None
    if len(peers) == 1 and len(ranks) == world_size:
        chunks = {rank: {other["chunk"] for r, other in places if r == rank} for rank in ranks}
        if all(of == set(range(world_size)) - {r} for r, of in chunks.items()):
            where = f"every chunk {_along(fact)} but chunk r"
            return f"every rank r: {_what(fact, where, fact['peer'])}"
    own = _step([(rank, other["chunk"]) for rank, other in places], world_size)
    if own is not None and len(ranks) == len(places) == world_size:
        where = f"chunk {_relative('r', own)} {_along(fact)}"
        if len(peers) == 1:
            return f"every rank r: {_what(fact, where, fact['peer'])}"
        by = _step([(rank, other["peer"]) for rank, other in places], world_size)
        return None if by is None else f"every rank r: {_what(fact, where, _relative('r', by))}"
    if len(peers) > 1:
        by = _step([(other["chunk"], other["peer"]) for _, other in places], world_size)
        if by is not None:
            where = f"every wrong chunk c {_along(fact)}"
            return f"{_who(sorted(ranks), world_size)}: {_what(fact, where, _relative('c', by))}"
    return None


def _along(fact: dict[str, Any]) -> str:
    return "in memory order" if fact["axis"] < 0 else f"of axis {fact['axis']}"


def _step(pairs: list[tuple[int, int | None]], world_size: int) -> int | None:
    """By how much the second of each pair is ahead of the first, modulo the number of ranks, if always the same."""
    steps = {None if b is None else (b - a) % world_size for a, b in pairs}
    return steps.pop() if len(steps) == 1 else None


def _relative(name: str, by: int) -> str:
    return name if by == 0 else f"(({name} + {by}) mod W)"


def _who(ranks: Sequence[int], world_size: int) -> str:
    return name_ranks(sorted(set(ranks)), world_size)


def _what(fact: dict[str, Any], where: str, peer: Any) -> str:
    output = "" if fact["output"] == "out" else f"{fact['output']}, "
    said = fact["says"].replace("rank {peer}'s", "any other rank's" if peer == ANY else f"rank {peer}'s")
    said = said.replace("{peer}", str(peer))
    return f"{output}{where}: {said}"


def _finding(fact: dict[str, Any], text: str, rank: int) -> Finding:
    evidence = f"{fact['evidence']} (on rank {rank})" if fact["evidence"] else ""
    return Finding(cause=fact["cause"], text=text, evidence=evidence, certain=fact["certain"])
