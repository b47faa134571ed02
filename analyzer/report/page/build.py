"""The document and a recording as one HTML file.

The file holds everything: style, script, data. Text of the trace reaches the page in two ways only,
both of which keep it text: through the template, which escapes, and as compressed data, which the
script shows by ``textContent``. A Content-Security-Policy names the page's own two scripts by their
hash and forbids every other, every request and every form.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import jinja2
from markupsafe import Markup

from analyzer.model import Recording
from analyzer.report.page.columns import pack, plain
from analyzer.report.page.payload import payload, requested_at
from analyzer.report.page.verdict import CATEGORY_LABELS, error_line, first_screen, what_if_words
from analyzer.report.unbroken import unbroken
from analyzer.report.words import front_findings, highest_words, island_words, saving_words
from analyzer.units import format_bytes

SCRIPTS: Final = (
    "format.js",
    "decode.js",
    "recording.js",
    "state.js",
    "address.js",
    "dom.js",
    "canvas.js",
    "axis.js",
    "labels.js",
    "timeline.js",
    "widths.js",
    "table.js",
    "tables.js",
    "lifetimes.js",
    "blocks.js",
    "icicle.js",
    "map.js",
    "graph.js",
    "compare.js",
    "findings.js",
    "keys.js",
    "detail.js",
    "controls.js",
    "app.js",
)
"""Files of the page's script, in the order in which they are joined."""

OTHER_SIZES: Final = (
    ("resident.requested_bytes", "resident before the step, requested"),
    ("resident.allocated_bytes", "resident before the step, allocated"),
    ("peak_ever.requested_bytes", "highest ever, requested"),
    ("peak_ever.allocated_bytes", "highest ever, allocated"),
    ("peak_ever.pool_bytes", "highest ever, pool"),
    ("fragmentation.internal_bytes", "waste inside chunks at the peak"),
    ("fragmentation.external_bytes", "free but unusable at the peak"),
    ("fragmentation.largest_free_bytes", "largest free chunk at the peak"),
    ("device.memory_limit_bytes", "limit of the allocator"),
    ("failure.free_bytes", "free under the limit at the failure"),
    ("uncertainty.low_bytes", "likely peak, low end"),
    ("uncertainty.high_bytes", "likely peak, high end"),
)
"""Numbers of the document that are listed at the end of the page, where the document has them."""

OPTIONAL: Final[dict[str, Any]] = {
    **dict.fromkeys(
        (
            "step",
            "fragmentation",
            "uncertainty",
            "error",
            "failure",
            "what_if",
            "versions",
            "verdict",
        )
    ),
    **{name: [] for name in ("steps", "ops", "tensors_at_peak", "retained", "findings")},
    **{name: [] for name in ("unmodelled", "warnings", "notes", "layers", "pool_timeline")},
}
"""What a document may lack, such as one that an earlier version wrote."""


STATIC_ROWS: Final = 25
"""Rows of each table that are in the page as HTML, for printing and for readers without script."""


def render(
    document: dict[str, Any],
    recording: Recording,
    *,
    comparison: Mapping[str, Any] | None = None,
) -> str:
    """Return the report as the text of one HTML file.

    Args:
        document: The JSON contract; every number shown is in it or in the recording's columns.
        recording: The buffers that the timeline and the views are drawn from.
        comparison: What :func:`analyzer.findings.compare.compare` returned, where the page is to
            show two runs; ``recording`` is then the second of them.
    """
    shown = _without_nul({**OPTIONAL, **plain(document)})
    compared = _without_nul(plain(comparison))
    header, columns = payload(shown, recording, compared)
    text = _template("template.html").render(
        document=shown,
        screen=first_screen(shown),
        warnings=[*shown.get("warnings", ()), *_disagreements(shown, recording)],
        top_findings=front_findings(shown),
        error_line=error_line((shown.get("error") or {}).get("message", "")),
        what_if=what_if_words(shown),
        categories=CATEGORY_LABELS,
        comparison=compared,
        title=_title(shown),
        other_sizes=[item for item in OTHER_SIZES if _value_at(shown, item[0]) is not None],
        value_at=lambda path: _value_at(shown, path),
        highest=highest_words(shown),
        islands=island_words(shown),
        static_tensors=_largest(shown.get("tensors_at_peak"), "requested_bytes"),
        static_ops=_largest(shown.get("ops"), "alive_at_peak_bytes"),
        static_layers=_largest(shown.get("layers"), "total_bytes"),
        static_retained=_largest(shown.get("retained"), "requested_bytes"),
        style=Markup(_asset("page.css")),
        script=Markup(_script()),
        theme_script=Markup(_asset("theme.js")),
        policy=_policy(),
        packed=pack(header, columns),
    )
    # A lone surrogate in a name cannot be written as UTF-8; it is shown as the replacement mark.
    return text.encode("utf-8", "replace").decode("utf-8")


def render_inline(
    document: dict[str, Any],
    recording: Recording,
    *,
    comparison: Mapping[str, Any] | None = None,
) -> str:
    """Return a summary that a notebook shows in place: no script, no style outside itself."""
    del recording  # the same signature as render; the summary needs only the documents
    shown = _without_nul({**OPTIONAL, **plain(document)})
    return _template("inline.html").render(
        document=shown,
        comparison=_without_nul(plain(comparison)),
        screen=first_screen(shown),
        top_findings=front_findings(shown),
        title=_title(shown),
    )


def _title(document: Mapping[str, Any]) -> str:
    target = document.get("target") or {}
    name = target.get("name") if isinstance(target, Mapping) else target
    return str(name or "unnamed target")


def _value_at(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _largest(rows: list[dict[str, Any]] | None, key: str) -> list[dict[str, Any]]:
    return sorted(rows or (), key=lambda row: -(row.get(key) or 0))[:STATIC_ROWS]


def _disagreements(document: Mapping[str, Any], recording: Recording) -> list[str]:
    """Say where the timeline, drawn from the buffers, is not what the document states."""
    instant = document["peak"].get("instant")
    if instant is None:
        return []
    drawn = requested_at(recording, int(instant))
    stated = document["categories_at_peak"]
    return [
        f"The timeline shows {format_bytes(drawn[category])} of {label.lower()} at the peak, "
        f"the document {format_bytes(stated.get(category, 0))}. Please report this."
        for category, label in CATEGORY_LABELS.items()
        if drawn[category] != stated.get(category, 0)
    ]


def _without_nul(value: Any) -> Any:
    """Replace U+0000, which no HTML can hold, in every text of ``value``."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd") if "\0" in value else value
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    return value


@cache
def _asset(name: str) -> str:
    return (resources.files("analyzer.report.page") / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    return "(() => {\n'use strict';\n" + "\n".join(map(_asset, SCRIPTS)) + "\n})();\n"


@cache
def _policy() -> str:
    allowed = " ".join(_hash(text) for text in (_asset("theme.js"), _script()))
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {allowed}",
            f"style-src {_hash(_asset('page.css'))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("analyzer.report.page", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = format_bytes
    environment.filters["seconds"] = _seconds
    environment.filters["unbroken"] = unbroken
    environment.filters["saving"] = saving_words
    return environment.get_template(name)
