"""The answer in words, taken from the document: peak, which number, and whether it fits.

Nothing is counted here; a figure that is not in the document is the difference of two that are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from analyzer.model import Category
from analyzer.report.integrity import damage_lines, labelled, replay_line
from analyzer.units import format_bytes

CATEGORY_LABELS: Final[dict[str, str]] = {
    "parameter": "Parameters",
    "optimizer_state": "Optimizer state",
    "gradient": "Gradients",
    "activation": "Activations",
    "input": "Inputs",
    "temporary": "Temporaries",
    "constant": "Constants",
    "unattributed": "Unattributed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with what it means, for the row of figures under the verdict.

    Attributes:
        label: The word for it, one of requested, allocated, pool, process.
        meaning: What that word means, in a line.
        path: Where the number stands in the document, such as ``peak.requested_bytes``.
        size_bytes: The number, None where it is not known.
    """

    label: str
    meaning: str
    path: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One category at the peak: its bytes, its part of the whole, and where its bar begins."""

    category: str
    label: str
    size_bytes: int
    share_ratio: float
    offset_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The first screen of the report.

    Attributes:
        outcome: ``fits``, ``tight``, ``over``, ``failed`` or ``open`` (no limit is known).
        headline: The answer in one line.
        sentences: What the headline rests on.
        reasons: What the range that the sentences state comes from.
    """

    outcome: str
    headline: str
    sentences: tuple[str, ...]
    reasons: tuple[str, ...]
    figures: tuple[Figure, ...]
    shares: tuple[Share, ...]
    limit_bytes: int | None
    margin_bytes: int | None


def verdict(document: Mapping[str, Any]) -> Verdict:
    """Return the answer that ``document`` holds."""
    peak = document["peak"]
    limit = document["device"].get("memory_limit_bytes")
    need = _need(document)
    outcome = _outcome(document, need, limit)
    fit = None if document.get("error") or document.get("what_if") else document.get("fit")
    if fit:
        need, limit = int(fit["needed_bytes"]), int(fit["limit_bytes"])
        outcome = {True: "fits", False: "over"}.get(fit["fits"], "tight")
    return Verdict(
        outcome=outcome,
        headline=labelled(document, _headline(document, outcome, need, limit)),
        sentences=tuple(_sentences(document)),
        reasons=tuple((document.get("uncertainty") or {}).get("because") or ()),
        figures=_figures(peak),
        shares=tuple(_shares(document["categories_at_peak"])),
        limit_bytes=limit,
        margin_bytes=limit - need if limit else None,
    )


def _need(document: Mapping[str, Any]) -> int:
    """Return the bytes that have to fit: for a prediction the smallest limit it runs under.

    That is at least the allocated peak, and more where fragmentation leaves gaps that no request can
    use. A step that was measured has run, whatever a simulation says.
    """
    allocated = int(document["peak"]["allocated_bytes"])
    smallest = (document.get("fragmentation") or {}).get("minimum_limit_bytes")
    return max(allocated, smallest or 0) if document["kind"] == "estimate" else allocated


def _outcome(document: Mapping[str, Any], need: int, limit: int | None) -> str:
    if document.get("error"):
        return "failed"
    replayed = document.get("what_if")
    if replayed:  # the limit that was asked about is the question
        return "fits" if replayed["fits"] else "over"
    if not limit:
        return "open"
    if need > limit:
        return "over"
    uncertainty = document.get("uncertainty") or {}
    if (uncertainty.get("high_bytes") or need) > limit or need > 0.95 * limit:
        return "tight"
    return "fits"


def _headline(document: Mapping[str, Any], outcome: str, need: int, limit: int | None) -> str:
    if outcome == "failed":
        return _failed(document)
    allocated = document["peak"]["allocated_bytes"]
    needed = f"Peak {format_bytes(allocated)} allocated"
    replayed = document.get("what_if")
    if replayed:
        words = "fits" if replayed["fits"] else "does not fit"
        asked = format_bytes(replayed["memory_limit_bytes"])
        return f"{needed}: {words} under a limit of {asked}, as replayed."
    if limit is None or outcome == "open":
        return f"{needed}."
    whole = format_bytes(limit)
    if need > allocated:
        needed += f"; needs a limit of {format_bytes(need)}"
    spare = f"{format_bytes(abs(limit - need))} ({_percent(abs(limit - need) / limit)})"
    if outcome == "tight" and need > limit:
        return f"{needed} of {whole}: may not fit, {spare} too much."
    if outcome == "over":
        return f"{needed} of {whole}: does not fit, {spare} too much."
    if outcome == "tight":
        return f"{needed} of {whole}: close to the limit, {spare} to spare."
    return f"{needed} of {whole}: fits, {spare} to spare."


def _failed(document: Mapping[str, Any]) -> str:
    """Say what did not fit, where the document knows it."""
    failure = document.get("failure") or {}
    wanted, limit = failure.get("requested_bytes"), failure.get("memory_limit_bytes")
    if wanted is None or limit is None:
        peak = format_bytes(document["peak"]["allocated_bytes"])
        return f"The step did not finish. Peak {peak} allocated until then."
    return (
        f"Out of memory: {format_bytes(wanted)} more do not fit beside the "
        f"{format_bytes(failure['in_use_bytes'])} in use of {format_bytes(limit)}."
    )


def _percent(ratio: float) -> str:
    """Return whole percents; 100 % only where it is all."""
    return "over 99%" if 0.995 <= ratio < 1 else f"{ratio:.0%}"


def error_line(message: str) -> str:
    """Return the line of an error that says what happened.

    TensorFlow puts the places of the call first, each on two lines, and what happened after them.
    """
    lines = [line.strip() for line in str(message).splitlines()]
    places = ('File "', "Detected at node", "Graph execution error", "[[{{", "Hint:")
    told = [line for line in lines if line and not line.startswith(places)]
    short = [line for line in told if "OOM when" in line] or told[-1:] or lines[:1]
    line = short[0] if short else ""
    return line if len(line) <= 300 else f"{line[:300]}…"


def what_if_words(document: Mapping[str, Any]) -> str:
    """Name the other settings that the trace was replayed under; empty where there are none."""
    replayed = document.get("what_if")
    if not replayed:
        return ""
    words = [f"a limit of {format_bytes(replayed['memory_limit_bytes'])}"]
    words.append("a growing pool" if replayed["growth"] else "a pool taken whole at the start")
    if replayed.get("fragmentation_fraction"):
        words.append(f"an internal_fragmentation_fraction of {replayed['fragmentation_fraction']}")
    return ", ".join(words)


def _sentences(document: Mapping[str, Any]) -> list[str]:
    """Say how it was found, where the peak is, and how sure the number is."""
    peak, device = document["peak"], document["device"]
    how = "Predicted, nothing was run," if document["kind"] == "estimate" else "Measured"
    if (document.get("integrity") or {}).get("is_damaged"):
        how = "Measured, from a damaged trace,"
    joint = "for" if document["kind"] == "estimate" else "on"
    sentences = [
        *damage_lines(document),
        f"{how} {joint} {device.get('name') or device.get('kind') or 'an unnamed device'}.",
    ]
    sentences.extend((document.get("fit") or {}).get("says", ()))
    where = []
    if peak.get("step") is not None:
        where.append(f"in step {peak['step']}")
    if peak.get("op"):
        where.append(f"when {peak['op']} asks for memory")
    if peak.get("layer"):
        where.append(f"layer {peak['layer']}")
    if where:
        sentences.append(f"The requested peak is {', '.join(where)}.")
    uncertainty = document.get("uncertainty")
    if uncertainty and uncertainty.get("low_bytes") is not None:
        low, high = (format_bytes(uncertainty[end]) for end in ("low_bytes", "high_bytes"))
        likely = f"Likely between {low} and {high} requested"
        if uncertainty.get("allocated_low_bytes") is not None:
            ends = ("allocated_low_bytes", "allocated_high_bytes")
            low, high = (format_bytes(uncertainty[end]) for end in ends)
            likely += f", {low} and {high} allocated"
        sentences.append(f"{likely}.")
    if checked := replay_line(document):
        sentences.append(checked)
    return sentences


def _figures(peak: Mapping[str, Any]) -> tuple[Figure, ...]:
    meanings = {
        "requested": "bytes the live tensors asked for",
        "allocated": "bytes of the chunks that hold them",
        "pool": "bytes the allocator took from the driver",
        "process": "pool, context, libraries and kernels",
    }
    return tuple(
        Figure(
            label=label,
            meaning=meaning,
            path=f"peak.{label}_bytes",
            size_bytes=peak.get(f"{label}_bytes"),
        )
        for label, meaning in meanings.items()
    )


def _shares(categories: Mapping[str, int]) -> list[Share]:
    total = sum(categories.values())
    shares, before = [], 0
    for category in Category:
        size_bytes = int(categories.get(category.value, 0))
        shares.append(
            Share(
                category=category.value,
                label=CATEGORY_LABELS[category.value],
                size_bytes=size_bytes,
                share_ratio=size_bytes / total if total else 0.0,
                offset_ratio=before / total if total else 0.0,
            )
        )
        before += size_bytes
    return shares
