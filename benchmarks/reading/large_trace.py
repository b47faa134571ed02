"""Traces of any length, made of a sample: its last step again and again, each at its own time.

What a step leaves behind or takes over from the one before is left out, so that each repetition begins
with the bytes in use with which it ends, and every figure that TensorFlow wrote stays right. Each
repetition has its own times, and each of a hundred its own step number and run id.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from analyzer.tracing.parse.protobuf import Space

SAMPLE: Final = "traces/transformer/plugins/profile/run/host.xplane.pb.gz"
_KINDS: Final = {b"MemoryAllocation": 1, b"MemoryDeallocation": -1}
_LINES = 3  # number of the field of a plane's lines
_STEPS: Final = (
    100  # steps that a line holds; a longer trace has lines of its own for each so many
)
Line: Final = type(Space().planes.add().lines.add())


class Window(NamedTuple):
    """One step of a sample: its events by line, those of memory, and how long it takes."""

    space: Any
    lines: list[tuple[Any, list[Any]]]
    memory_events: int
    period_ps: int


def write_trace(path: Path, *, memory_events: int = 0, size_bytes: int = 0) -> int:
    """Write a trace of at least so many memory events or bytes; return its number of memory events.

    Args:
        path: The file.
        memory_events: Memory events at least.
        size_bytes: Bytes at least.
    """
    window = _window(Path(SAMPLE))
    steps: list[list[bytes]] = []
    for number in range(_STEPS):
        steps.append([_repeated(window, events, number) for _, events in window.lines])
        if len(steps) * window.memory_events >= memory_events and not size_bytes:
            break
    parts = [b"".join(part) for part in zip(*steps, strict=True)]
    once = len(steps) * window.memory_events
    rounds = max(-(-memory_events // once), -(-size_bytes // sum(map(len, parts))), 1)
    span_ns = len(steps) * window.period_ps // 1000 + 1
    with path.open("wb") as file:
        heads = [
            [
                _head(line, part, at * span_ns)
                for (line, _), part in zip(window.lines, parts, strict=True)
            ]
            for at in range(rounds)
        ]
        rest = _without_lines(window.space.planes[0])
        whole = rounds * sum(map(len, parts)) + sum(
            len(head) for some in heads for head in some
        )
        file.write(_key(1, len(rest) + whole))
        file.write(rest)
        for some in heads:
            for head, part in zip(some, parts, strict=True):
                file.write(head)
                file.write(part)
        other = Space()
        other.CopyFrom(window.space)
        del other.planes[0]
        file.write(other.SerializeToString())
    return rounds * once


def _window(sample: Path) -> Window:
    space = Space.FromString(gzip.decompress(sample.read_bytes()))
    plane = space.planes[0]
    names = {entry.key: entry.value.name for entry in plane.event_metadata}
    stats = {entry.key: entry.value.name for entry in plane.stat_metadata}
    timed = [
        (line.timestamp_ns * 1000 + event.offset_ps, number, event)
        for number, line in enumerate(plane.lines)
        for event in line.events
        if not names[event.metadata_id].startswith(b"analyzer:")
    ]
    marks = [
        (start, start + event.duration_ps)
        for start, _, event in timed
        if any(stats[stat.metadata_id] == b"step_num" for stat in event.stats)
    ]
    first, last = max(marks)
    inside = sorted((t for t in timed if first <= t[0] <= last), key=lambda t: t[0])
    kept = set(_balanced(inside, names, stats))
    lines = []
    for number, line in enumerate(plane.lines):
        events = [
            event
            for _, at, event in inside
            if at == number
            and (names[event.metadata_id] not in _KINDS or id(event) in kept)
        ]
        base = line.timestamp_ns * 1000
        for event in events:
            event.offset_ps -= first - base
        lines.append((line, events))
    for line, _ in lines:
        line.timestamp_ns = 0
    return Window(space, lines, len(kept), last - first + 1_000_000)


def _balanced(
    inside: list[Any], names: dict[int, bytes], stats: dict[int, bytes]
) -> Iterator[int]:
    """Yield the identity of the memory events whose other half lies in the window too.

    The bytes in use are written anew for what is left.
    """
    key = {name: number for number, name in stats.items()}
    alive: dict[int, Any] = {}
    pairs = []
    memory = [event for _, _, event in inside if names[event.metadata_id] in _KINDS]
    for event in memory:
        address = (
            _stat(event, key[b"addr"]).int64_value
            or _stat(event, key[b"addr"]).uint64_value
        )
        if _KINDS[names[event.metadata_id]] > 0:
            alive[address] = event
        elif address in alive:
            pairs += [id(alive.pop(address)), id(event)]
    kept = set(pairs)
    first = memory[0]
    in_use = _stat(first, key[b"bytes_allocated"]).int64_value
    limit = in_use + _stat(first, key[b"bytes_available"]).int64_value
    in_use = start = in_use // 2
    peak = start
    for event in memory:
        if id(event) in kept:
            size = _stat(event, key[b"allocation_bytes"]).int64_value
            in_use += _KINDS[names[event.metadata_id]] * size
            peak = max(peak, in_use)
    for event in memory:
        if id(event) in kept:
            size = _stat(event, key[b"allocation_bytes"]).int64_value
            start += _KINDS[names[event.metadata_id]] * size
            _stat(event, key[b"bytes_allocated"]).int64_value = start
            _stat(event, key[b"bytes_available"]).int64_value = limit - start
            _stat(event, key[b"peak_bytes_in_use"]).int64_value = peak
    yield from kept


def _stat(event: Any, key: int) -> Any:
    return next(stat for stat in event.stats if stat.metadata_id == key)


def _repeated(window: Window, events: list[Any], number: int) -> bytes:
    """Return the bytes of a line's events of one repetition."""
    shift = window.period_ps if number else 0
    stats = {
        entry.key: entry.value.name for entry in window.space.planes[0].stat_metadata
    }
    counted = {key for key, name in stats.items() if name in (b"step_num", b"id")}
    for event in events:
        event.offset_ps += shift
        for stat in event.stats:
            if number and stat.metadata_id in counted and stat.int64_value:
                stat.int64_value += 1
    return bytes(Line(events=events).SerializeToString())


def _head(line: Any, events: bytes, time_ns: int) -> bytes:
    """Return what stands before a line's events, at ``time_ns``."""
    head = bytes(
        Line(id=line.id, name=line.name, timestamp_ns=time_ns).SerializeToString()
    )
    return _key(_LINES, len(head) + len(events)) + head


def _without_lines(plane: Any) -> bytes:
    copy = type(plane)()
    copy.CopyFrom(plane)
    del copy.lines[:]
    return bytes(copy.SerializeToString())


def _key(field: int, length: int) -> bytes:
    """Return the key of a length-delimited field, and its length."""
    written = bytearray([field << 3 | 2])
    while length > 127:
        written.append(length & 127 | 128)
        length >>= 7
    return bytes([*written, length])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--memory-events", type=int, default=0)
    parser.add_argument("--gib", type=float, default=0.0)
    given = parser.parse_args()
    written = write_trace(
        given.path,
        memory_events=given.memory_events,
        size_bytes=int(given.gib * (1 << 30)),
    )
    print(f"{given.path}: {written} memory events, {given.path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
