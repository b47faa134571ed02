"""Write a recording as stacks of layers: for speedscope and for pprof.

A stack is the path of a buffer's layer, outermost first, and then its op. Buffers without a layer stand
under the name of their category.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.tracing.parse.protobuf import message_class

_SPEEDSCOPE_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"

_VALUES: Final = (
    ("alive_objects", "count"),
    ("alive_space", "bytes"),
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
)
"""Values of a pprof sample: buffers alive at the peak, and all buffers of the steady step."""

PPROF: Final = {
    "Profile": {
        "sample_type": (1, "ValueType[]"),
        "sample": (2, "Sample[]"),
        "location": (4, "Location[]"),
        "function": (5, "Function[]"),
        "string_table": (6, "bytes[]"),
        "default_sample_type": (14, "int64"),
    },
    "ValueType": {"type": (1, "int64"), "unit": (2, "int64")},
    "Sample": {"location_id": (1, "uint64[]"), "value": (2, "int64[]")},
    "Location": {"id": (1, "uint64"), "line": (4, "Line[]")},
    "Line": {"function_id": (1, "uint64"), "line": (2, "int64")},
    "Function": {"id": (1, "uint64"), "name": (2, "int64"), "filename": (4, "int64")},
}
"""Fields of ``perftools.profiles.Profile`` (``profile.proto`` of google/pprof)."""

Stack = tuple[str, ...]


def write_speedscope(analysis: Analysis, name: str) -> str:
    """Return the tensors alive at the requested peak as JSON for speedscope.

    The file has two profiles: by layer, and by category and layer.
    """
    frames: dict[str, int] = {}

    def profile(title: str, sizes: Counter[Stack]) -> dict[str, Any]:
        samples = [[frames.setdefault(part, len(frames)) for part in stack] for stack in sizes]
        total = sum(sizes.values())
        return {
            "type": "sampled",
            "name": title,
            "unit": "bytes",
            "startValue": 0,
            "endValue": total,
            "samples": samples,
            "weights": list(sizes.values()),
        }

    by_layer: Counter[Stack] = Counter()
    by_category: Counter[Stack] = Counter()
    for row, stack in _stacks(analysis.alive):
        by_layer[stack] += row.requested_bytes
        by_category[(str(row.category), *stack)] += row.requested_bytes
    profiles = [profile("by layer", by_layer), profile("by category and layer", by_category)]
    content = {
        "$schema": _SPEEDSCOPE_SCHEMA,
        "name": name,
        "exporter": "tf-memory-analyzer",
        "activeProfileIndex": 0,
        "profiles": profiles,
        "shared": {"frames": [{"name": frame} for frame in frames]},
    }
    return json.dumps(content)


def write_pprof(analysis: Analysis) -> bytes:
    """Return the buffers of the steady step as a gzipped pprof profile."""
    profile = _profile_class()()
    strings: dict[str, int] = {"": 0}
    locations: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    def locate(frame: str) -> int:
        if frame not in locations:
            number = locations[frame] = len(locations) + 1
            profile.function.add(id=number, name=text(frame))
            profile.location.add(id=number).line.add(function_id=number)
        return locations[frame]

    for kind, unit in _VALUES:
        profile.sample_type.add(type=text(kind), unit=text(unit))
    values: dict[Stack, list[int]] = {}
    born = analysis.rows["born"]
    in_step = analysis.rows[(born >= analysis.first) & (born <= analysis.last)]
    for first, rows in ((0, analysis.alive), (2, in_step)):
        for row, stack in _stacks(rows):
            sums = values.setdefault(stack, [0] * len(_VALUES))
            sums[first] += 1
            sums[first + 1] += int(row.requested_bytes)
    for stack, sums in values.items():
        profile.sample.add(location_id=[locate(frame) for frame in reversed(stack)], value=sums)
    profile.default_sample_type = text("alive_space")
    profile.string_table.extend(one.encode("utf-8", "replace") for one in strings)
    return gzip.compress(profile.SerializeToString(), mtime=0)


@cache
def _profile_class() -> Any:
    return message_class("analyzer.pprof", PPROF, "Profile")


def _stacks(rows: pd.DataFrame) -> Iterator[tuple[Any, Stack]]:
    """Yield each row with its stack, outermost first."""
    for row in rows.itertuples():
        layers = str(row.layer).split("/") if row.layer else [f"({row.category})"]
        leaf = str(row.variable or row.op or row.tensor or row.role or "(no op)")
        yield row, (*layers, leaf)
