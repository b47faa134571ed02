"""``analyze diff A B``: compare two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analyzer.cli import shared_options as options
from analyzer.cli.outputs import PageOutputs
from analyzer.model.errors import GrowthError, InputError
from analyzer.report.diff_sections import allowed_growth, diff_document
from analyzer.session.public_calls import diff as compare


def diff(
    a: Annotated[
        Path,
        typer.Argument(
            help="The older run folder, logdir or .xplane.pb.", metavar="A", show_default=False
        ),
    ],
    b: Annotated[Path, typer.Argument(help="The newer one.", metavar="B", show_default=False)],
    *,
    outputs: PageOutputs,
    markdown: options.MarkdownFile = None,
    fail_on_increase: Annotated[
        str | None,
        options.in_result(
            "Exit with 4 if the requested peak grew by more than this, such as 5% or 100MiB."
        ),
    ] = None,
) -> None:
    """Compare two steps: peaks, categories, layers and ops, from A to B."""
    outputs.check(a, b, others=[markdown])
    if fail_on_increase is not None:
        allowed_growth(fail_on_increase, 0)
    for path in (a, b):
        if not path.exists():
            raise InputError(
                f"{path} does not exist.", hint="Name a run folder, a logdir or an .xplane.pb."
            )
    difference = compare(a, b)
    outputs.show(
        difference.to_json,
        difference.to_html,
        lambda: diff_document(difference.report),
        (markdown, difference.to_markdown),
    )
    excess = "" if fail_on_increase is None else difference.exceeds(fail_on_increase)
    if excess:
        raise GrowthError(excess)
