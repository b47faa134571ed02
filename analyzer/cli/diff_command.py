"""``analyze diff A B``: compare two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analyzer.cli import shared_options as options
from analyzer.cli.outputs import (
    check_not_input,
    check_paths,
    open_in_browser,
    print_answer,
    write_all,
)
from analyzer.cli.stdout import DASH
from analyzer.model.errors import GrowthError, InputError
from analyzer.report.diff_result import allowed_growth
from analyzer.session.public_calls import diff as compare


def diff(
    a: Annotated[
        Path,
        typer.Argument(
            help="The older run folder, logdir or .xplane.pb.", metavar="A", show_default=False
        ),
    ],
    b: Annotated[Path, typer.Argument(help="The newer one.", metavar="B", show_default=False)],
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    markdown: options.MarkdownFile = None,
    fail_on_increase: Annotated[
        str | None,
        options.in_result(
            "Exit with 4 if the requested peak grew by more than this, such as 5% or 100MiB."
        ),
    ] = None,
    open_page: options.OpenPage = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare two steps: peaks, categories, layers and ops, from A to B."""
    check_not_input((json, html, markdown), a, b)
    check_paths(json, html, markdown, force=force)
    if fail_on_increase is not None:
        allowed_growth(fail_on_increase, 0)
    for path in (a, b):
        if not path.exists():
            raise InputError(
                f"{path} does not exist.", hint="Name a run folder, a logdir or an .xplane.pb."
            )
    difference = compare(a, b)
    if not write_all(
        (json, difference.to_json), (html, difference.to_html), (markdown, difference.to_markdown)
    ):
        from analyzer.report.diff_sections import diff_document

        print_answer(diff_document(difference.report), quiet=quiet)
    if open_page:
        open_in_browser(None if html == DASH else html, difference.to_html)
    excess = "" if fail_on_increase is None else difference.exceeds(fail_on_increase)
    if excess:
        raise GrowthError(excess)
