"""The page's first screen in words, taken from the document: the verdict, the figures, the categories.

Nothing is counted here, and no verdict worked out: :mod:`analyzer.findings.fit` did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


_LOOKS: Final = {
    "fits": "fits",
    "does not fit": "over",
    "cannot tell": "tight",
    "no limit given": "open",
    "failed": "failed",
}

_FOUND: Final = {
    "measured": "Measured on",
    "predicted": "Predicted, nothing was run, for",
    "phantom": "TensorFlow's own GPU runtime without a card, no kernel was run, for",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with what it means, for the row of figures under the verdict.

    Attributes:
        label: The word for it: requested, allocated, pool, process, limit, needs.
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
class FirstScreen:
    """The first screen of the report: the document's verdict with what stands around it.

    Attributes:
        look: Class of the colours: ``fits``, ``tight``, ``over``, ``failed`` or ``open``.
        headline: The answer in one line.
        cautions: What to doubt, in few words each.
        basis: What the figures rest on: ``measured``, ``predicted`` or ``phantom``.
        sentences: How it was found, where the peak is, how sure the number is.
        reasons: What the figures rest on, to be unfolded.
        figures, shares: The row of figures, and the categories.
    """

    look: str
    headline: str
    cautions: tuple[str, ...]
    basis: str
    sentences: tuple[str, ...]
    reasons: tuple[str, ...]
    figures: tuple[Figure, ...]
    shares: tuple[Share, ...]


def first_screen(document: Mapping[str, Any]) -> FirstScreen:
    """Return the document's answer in words; nothing of it is worked out here."""
    answer = _answer(document)
    says = (document.get("fit") or {}).get("says") or ()
    because = (document.get("uncertainty") or {}).get("because") or ()
    return FirstScreen(
        look=_LOOKS[answer["outcome"]],
        headline=labelled(document, answer["headline"]),
        cautions=tuple(answer["cautions"]),
        basis=answer["basis"],
        sentences=tuple(_sentences(document)),
        reasons=(*says, *because, *(document.get("notes") or ())),
        figures=tuple(_figures(document)),
        shares=tuple(_shares(document["categories_at_peak"])),
    )


def _answer(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document's verdict; that no limit was given where an earlier version wrote none."""
    peak = document["peak"]
    return document.get("verdict") or {
        "outcome": "no limit given",
        "basis": "predicted" if document["kind"] == "estimate" else "measured",
        "headline": f"Peak {format_bytes(peak['allocated_bytes'])} allocated",
        "cautions": (),
        **dict.fromkeys(("limit_of", "card", "limit_bytes", "need_bytes")),
    }


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
    found = _FOUND[_answer(document)["basis"]]
    if (document.get("integrity") or {}).get("is_damaged"):
        found = "Measured, from a damaged trace, on"
    named = device.get("name") or device.get("kind") or "an unnamed device"
    sentences = [*damage_lines(document), f"{found} {named}."]
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


def _figures(document: Mapping[str, Any]) -> Iterator[Figure]:
    peak, answer = document["peak"], _answer(document)
    meanings = {
        "requested": "bytes the live tensors asked for",
        "allocated": "bytes of the chunks that hold them",
        "pool": "bytes the allocator took from the driver",
        "process": "pool, context, libraries and kernels",
    }
    for label, meaning in meanings.items():
        path = f"peak.{label}_bytes"
        yield Figure(label=label, meaning=meaning, path=path, size_bytes=peak[f"{label}_bytes"])
    on_card = answer["limit_of"] == "card"
    yield Figure(
        label="limit",
        meaning=f"TensorFlow's limit on {answer['card']}" if on_card else "the limit given",
        path="verdict.limit_bytes",
        size_bytes=answer["limit_bytes"],
    )
    gets_as_far = "least limit that gets as far"
    yield Figure(
        label="needs",
        meaning=gets_as_far if document.get("error") else "least memory limit it runs under",
        path="verdict.need_bytes",
        size_bytes=answer["need_bytes"],
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
