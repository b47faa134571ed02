"""Two recordings side by side: what came, went and grew at the peak.

The same for two measurements, two predictions, or a prediction and a measurement of one step. Layers
and ops are compared by what is alive at each one's own requested peak, so that each grouping adds up
to the peaks and its differences to the difference of the peaks::

    first:   conv1 10, conv2 20           peak 30
    second:  conv1 10, conv2 24, head 6   peak 40
    rows:    conv2 +4 (grew), head +6 (came), conv1 0 (same); together +10

Names that one side lacks are matched once more without their trailing numbers, because tracing a
model twice numbers its ops differently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model import Category, Recording
from analyzer.timeline import main_rows
from analyzer.units import format_bytes

TIMELINE_COLUMNS: Final = 800
"""Points of each curve: each is the instant with the most requested bytes in its part of the step."""

KIND_WORDS: Final = {"estimate": "predicted", "trace": "measured", "phantom": "on a phantom card"}
_NUMBERS: Final = ("requested", "allocated", "pool", "process")
_OUTPUT_NUMBER: Final = re.compile(r":\d+$")
_TRAILING_NUMBER: Final = re.compile(r"_\d+(?=[/:]|$)")


def compare(
    document_a: Mapping[str, Any],
    recording_a: Recording,
    document_b: Mapping[str, Any],
    recording_b: Recording,
    *,
    labels: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Return what differs from A (the older, or the prediction) to B, as plain values.

    Args:
        document_a, document_b: The JSON contract of each.
        recording_a, recording_b: What each document is about.
        labels: What to call the two, such as their file names; else what tells them apart.

    Returns:
        ``headline`` and ``notes`` in words; ``a`` and ``b`` (label, kind, batch size, peak);
        ``peak``, ``categories``, ``layers`` and ``ops`` as rows with ``a_bytes``, ``b_bytes`` and
        ``delta_bytes`` (requested, but for the rows of ``peak``, which name their number), the last
        two sorted by how much they differ; ``timelines`` of the steady step of both.
    """
    alive_a, alive_b = (
        _alive_at_peak(document_a, recording_a),
        _alive_at_peak(document_b, recording_b),
    )
    label_a, label_b = labels or _labels(document_a, document_b)
    categories = [
        {
            "category": category.value,
            **_difference(
                int(document_a["categories_at_peak"].get(category.value, 0)),
                int(document_b["categories_at_peak"].get(category.value, 0)),
            ),
        }
        for category in Category
    ]
    peak = [
        {
            "number": number,
            **_difference(
                document_a["peak"].get(f"{number}_bytes"), document_b["peak"].get(f"{number}_bytes")
            ),
        }
        for number in _NUMBERS
    ]
    return {
        "headline": _headline(peak, categories, (document_a["kind"], document_b["kind"])),
        "notes": _notes(document_a, document_b),
        "a": _side(document_a, label_a),
        "b": _side(document_b, label_b),
        "peak": [row for row in peak if row["a_bytes"] is not None or row["b_bytes"] is not None],
        "categories": [row for row in categories if row["a_bytes"] or row["b_bytes"]],
        "layers": _rows(_sums(alive_a, "layer"), _sums(alive_b, "layer"), lambda _: {}),
        "ops": _rows(_sums(alive_a, "made"), _sums(alive_b, "made"), _op_facts(alive_a, alive_b)),
        "timelines": {"a": _timeline(recording_a), "b": _timeline(recording_b)},
    }


def _alive_at_peak(document: Mapping[str, Any], recording: Recording) -> pd.DataFrame:
    table = main_rows(recording)
    instant = document["peak"]["instant"]
    alive: pd.DataFrame = table[(table["born"] <= instant) & (table["dies"] > instant)]
    return alive.assign(made=_made(alive))


def _made(alive: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Name what to compare a buffer under: its op; for what outlives ops its variable or input.

    A variable is the same one whichever op last wrote it, and a prediction may know of none.
    """
    names = {
        name: alive[name].astype(str).to_numpy(dtype=object)
        for name in ("variable", "tensor", "op", "role")
    }
    is_input = (alive["category"].astype(str) == Category.INPUT.value).to_numpy(dtype=bool)
    fed = np.array([_OUTPUT_NUMBER.sub("", name) for name in names["tensor"]], dtype=object)
    made = np.where(names["op"] != "", names["op"], names["role"])
    made = np.where(is_input & (fed != ""), fed, made)
    return np.where(names["variable"] != "", names["variable"], made)


def _sums(alive: pd.DataFrame, column: str) -> dict[str, int]:
    sums = alive["requested_bytes"].groupby(alive[column].astype(str).to_numpy(dtype=object)).sum()
    return {str(name): int(size) for name, size in sums.items()}


def _rows(
    sums_a: Mapping[str, int], sums_b: Mapping[str, int], facts: Callable[[str], dict[str, str]]
) -> list[dict[str, Any]]:
    """Return one row for each name, the largest difference first."""
    both = sums_a.keys() & sums_b.keys()
    a, b = _matched(sums_a, both), _matched(sums_b, both)
    rows: list[dict[str, Any]] = []
    for name in sorted(a.keys() | b.keys()):
        sizes = a.get(name, 0), b.get(name, 0)
        rows.append({"name": name, **facts(name), **_difference(*sizes), "change": _change(*sizes)})
    return sorted(rows, key=lambda row: -abs(row["delta_bytes"]))


def _matched(sums: Mapping[str, int], both: set[str]) -> dict[str, int]:
    """Sum under the name itself where both sides have it, else under the name without numbers."""
    matched: dict[str, int] = {}
    for name, size_bytes in sums.items():
        key = name if name in both else _TRAILING_NUMBER.sub("", name)
        matched[key] = matched.get(key, 0) + size_bytes
    return matched


def _change(a_bytes: int, b_bytes: int) -> str:
    if a_bytes == b_bytes:
        return "same"
    if not a_bytes:
        return "came"
    if not b_bytes:
        return "went"
    return "grew" if b_bytes > a_bytes else "shrank"


def _difference(a_bytes: int | None, b_bytes: int | None) -> dict[str, int | None]:
    known = a_bytes is not None and b_bytes is not None
    return {
        "a_bytes": a_bytes,
        "b_bytes": b_bytes,
        "delta_bytes": b_bytes - a_bytes if known else None,  # type: ignore[operator]
    }


def _op_facts(*alive: pd.DataFrame) -> Callable[[str], dict[str, str]]:
    """Return what gives an op's type and layer, from the first side that has the op."""
    known: dict[str, dict[str, str]] = {}
    for table in alive:
        first = table.drop_duplicates("made")
        rows = zip(*(first[name].astype(str) for name in ("made", "op_type", "layer")), strict=True)
        for op, op_type, layer in rows:
            facts = {"type": op_type, "layer": layer}
            known.setdefault(op, facts)
            known.setdefault(_TRAILING_NUMBER.sub("", op), facts)
    return lambda op: known.get(op, {"type": "", "layer": ""})


def _side(document: Mapping[str, Any], label: str) -> dict[str, Any]:
    return {
        "label": label,
        "kind": document["kind"],
        "batch_size": (document.get("step") or {}).get("batch_size"),
        "peak": dict(document["peak"]),
    }


def _labels(document_a: Mapping[str, Any], document_b: Mapping[str, Any]) -> tuple[str, str]:
    """Name both sides by what tells them apart."""
    names = [
        str((document.get("target") or {}).get("name", "")) for document in (document_a, document_b)
    ]
    batches = [
        (document.get("step") or {}).get("batch_size") for document in (document_a, document_b)
    ]
    shown = [
        KIND_WORDS.get(str(document["kind"]), str(document["kind"]))
        for document in (document_a, document_b)
    ]
    labels = []
    for place in (0, 1):
        parts = [names[place]] if names[0] != names[1] else []
        parts += [shown[place]] if shown[0] != shown[1] else []
        parts += [f"batch {batches[place]}"] if batches[0] != batches[1] else []
        labels.append(", ".join(part for part in parts if part) or ("first", "second")[place])
    return labels[0], labels[1]


def _notes(document_a: Mapping[str, Any], document_b: Mapping[str, Any]) -> list[str]:
    """Say what else differs, so that a difference is not taken for more than it is."""
    notes = []
    pairs = {
        "mode": [(d.get("step") or {}).get("mode") for d in (document_a, document_b)],
        "batch size": [(d.get("step") or {}).get("batch_size") for d in (document_a, document_b)],
        "optimizer": [(d.get("step") or {}).get("optimizer") for d in (document_a, document_b)],
        "dtype policy": [
            (d.get("step") or {}).get("dtype_policy") for d in (document_a, document_b)
        ],
        "XLA": [(d.get("step") or {}).get("jit") for d in (document_a, document_b)],
        "device": [d["device"].get("name") for d in (document_a, document_b)],
        "tensorflow": [
            (d.get("versions") or {}).get("tensorflow") for d in (document_a, document_b)
        ],
    }
    differing = [
        f"{name} {_word(a)} and {_word(b)}"
        for name, (a, b) in pairs.items()
        if _word(a) != _word(b)
    ]
    if differing:
        notes.append(f"The two differ in {'; '.join(differing)}.")
    for place, document in (("first", document_a), ("second", document_b)):
        if document.get("error"):
            notes.append(f"The {place} did not finish its step: its peak is of what ran.")
        told = (document.get("integrity") or {}).get("says") or ()
        notes += [f"The {place}: {line}" for line in told[:1]]
    return notes


def _word(value: object) -> str:
    """Return a setting as a word: on, off, none where it is not there."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in (None, "") else str(value)


def _headline(
    peak: list[dict[str, Any]], categories: list[dict[str, Any]], kinds: tuple[str, str]
) -> str:
    requested = peak[0]
    delta, now = requested["delta_bytes"], format_bytes(requested["b_bytes"])
    if not delta:
        return f"The requested peak is the same: {now}."
    ratio = delta / requested["a_bytes"] if requested["a_bytes"] else 0.0
    part = f" ({ratio:+.1%})" if abs(ratio) >= 0.0005 else ""
    most = max(categories, key=lambda row: abs(row["delta_bytes"]))
    sign = "+" if most["delta_bytes"] > 0 else "-"
    category = most["category"].replace("_", " ")
    differs = f"{category}, {sign}{format_bytes(abs(most['delta_bytes']))}"
    size = f"{format_bytes(abs(delta))}{part}"
    if kinds[0] != kinds[1]:
        first, second = (KIND_WORDS[kind] for kind in kinds)
        word = "above" if delta > 0 else "below"
        return (
            f"The {second} requested peak of {now} is {size} {word} the {first} one; the category "
            f"that differs most is {differs}."
        )
    word = "grew" if delta > 0 else "shrank"
    return (
        f"The requested peak {word} by {size} to {now}; the category that changes most is "
        f"{differs}."
    )


def _timeline(recording: Recording) -> dict[str, list[Any]]:
    """Return the curve of the last step that has events: progress from 0 to 1, and bytes.

    At most :data:`TIMELINE_COLUMNS` points, each a real instant; the peak is always one of them.
    """
    table = main_rows(recording)
    requested, allocated = (_running(table, f"{name}_bytes") for name in ("requested", "allocated"))
    steps = [step for step in recording.steps if step.last >= step.first]
    first, last = (steps[-1].first, steps[-1].last) if steps else (0, len(requested) - 2)
    window = slice(first + 1, last + 2)  # place 0 is the state before the first event
    requested, allocated = requested[window], allocated[window]
    if not len(requested):
        return {"progress_ratio": [], "requested_bytes": [], "allocated_bytes": []}
    edges = np.linspace(0, len(requested), min(TIMELINE_COLUMNS, len(requested)) + 1).astype(
        np.int64
    )
    picked = [
        int(a + np.argmax(requested[a:b])) for a, b in zip(edges[:-1], edges[1:], strict=True)
    ]
    return {
        "progress_ratio": [round(place / max(1, len(requested) - 1), 6) for place in picked],
        "requested_bytes": [int(requested[place]) for place in picked],
        "allocated_bytes": [int(allocated[place]) for place in picked],
    }


def _running(table: pd.DataFrame, column: str) -> npt.NDArray[np.int64]:
    """Return bytes alive at each state (state 0 before the first event), shape (n_events + 1,)."""
    length = int(table["dies"].max()) + 2 if len(table) else 1
    change = np.zeros(length, dtype=np.int64)
    np.add.at(
        change, table["born"].to_numpy(dtype=np.int64) + 1, table[column].to_numpy(dtype=np.int64)
    )
    np.add.at(
        change, table["dies"].to_numpy(dtype=np.int64) + 1, -table[column].to_numpy(dtype=np.int64)
    )
    return np.cumsum(change)
