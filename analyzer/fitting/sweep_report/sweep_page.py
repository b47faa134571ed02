"""A sweep as one HTML file: the report page's style, a table, no script."""

from __future__ import annotations

from functools import cache
from typing import Final

import jinja2
from markupsafe import Markup

from analyzer.fitting.sweep_report.sweep_table import sweep_line, verdict_word
from analyzer.model.contract.report.sweep_file import SweepFile
from analyzer.report.page.sealed_page import asset, policy_of, templates_in, writable

_SWEEP: Final = "analyzer.fitting.sweep_report"


def render_sweep_page(sweep: SweepFile) -> str:
    """Return the sweep as the text of one HTML file."""
    style = asset("analyzer.report.render", "assets/shared.css") + asset(_SWEEP, "sweep_page.css")
    most = max((cell.allocated_bytes or 0 for cell in sweep.cells), default=0) or 1
    text = _template().render(
        sweep=sweep,
        headline=sweep_line(sweep),
        rows=[
            (cell, verdict_word(cell), round(100 * (cell.allocated_bytes or 0) / most, 1))
            for cell in sweep.cells
        ],
        style=Markup(style),
        policy=policy_of(style),
    )
    return writable(text)


@cache
def _template() -> jinja2.Template:
    environment = templates_in(_SWEEP)
    environment.undefined = jinja2.StrictUndefined
    return environment.get_template("sweep_page.html")
