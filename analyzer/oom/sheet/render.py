"""An account and its cases as the text of one HTML file.

Text of the log reaches the page through the template alone, which escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import jinja2
from markupsafe import Markup

from analyzer.oom.failure_case import OomCase
from analyzer.oom.sheet.drawing import WIDTH, pool_map
from analyzer.oom.telling import FIGURES, asked_words, card_words
from analyzer.report.page.sealed_page import asset, policy_of, templates_in, writable

_DRAWN: Final = 8
"""Failures whose pool is drawn; the others have their figures."""
_SHOWN: Final = 40  # failures told on the page
_LOOKS: Final = {
    "larger-than-card": "over",
    "larger-than-limit": "over",
    "cannot-tell": "tight",
}

_SHEET: Final = "analyzer.oom.sheet"


def render_sheet(document: dict[str, Any], cases: Sequence[OomCase]) -> str:
    """Return the page.

    Args:
        document: The account as plain values; every number shown is in it or in the cases' chunks.
        cases: The failures in the document's order, for drawing.
    """
    failures = document["failures"]
    first = failures[0]["verdict"]["id"] if failures else ""
    text = _template().render(
        document=document,
        failures=failures[:_SHOWN],
        maps=[pool_map(case) for case in cases[:_DRAWN]],
        more=max(len(failures) - _SHOWN, 0) + document["failures_not_shown"],
        look=_LOOKS.get(first, "over") if failures else "fits",
        figures=FIGURES,
        width=WIDTH,
        style=Markup(_style()),
        script=Markup(asset(_SHEET, "sheet.js")),
        theme_script=Markup(asset("analyzer.report.render", "assets/theme.js")),
        policy=_policy(),
    )
    return writable(text)


def _style() -> str:
    return asset("analyzer.report.render", "assets/shared.css") + asset(_SHEET, "sheet.css")


@cache
def _policy() -> str:
    return policy_of(
        _style(), (asset("analyzer.report.render", "assets/theme.js"), asset(_SHEET, "sheet.js"))
    )


@cache
def _template() -> jinja2.Template:
    environment = templates_in(_SHEET)
    environment.filters["asked"] = asked_words
    environment.filters["card"] = card_words
    return environment.get_template("sheet.html")
