"""``analyze diff A B``: what came, went and grew between two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analyzer.cli.outputs import check_not_read, check_paths, open_in_browser, write_all
from analyzer.cli.stdout import DASH, printing, terminal
from analyzer.model.errors import GrowthError, InputError
from analyzer.report.diff_result import Diff, allowed_growth
from analyzer.session.public_calls import diff as diff_of


def diff(
    a: Annotated[
        Path,
        typer.Argument(
            help="The older: a run folder, logdir or .xplane.pb.", metavar="A", show_default=False
        ),
    ],
    b: Annotated[Path, typer.Argument(help="The newer.", metavar="B", show_default=False)],
    json: Annotated[
        Path | None,
        typer.Option(help="Write the difference as JSON; - for stdout, here and below."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page of B with the difference as its first view.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write a summary for a pull request.")
    ] = None,
    fail_on_increase: Annotated[
        str | None,
        typer.Option(
            help="Exit with 4 if the requested peak grew by more than this, such as 5% or 100MiB."
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables.")] = False,
) -> None:
    """Compare two traced steps: peaks, categories, layers and ops, from A to B."""
    check_paths(json, html, markdown)
    check_not_read((json, html, markdown), a, b)
    if fail_on_increase is not None:
        allowed_growth(fail_on_increase, 0)
    for path in (a, b):
        if not path.exists():
            raise InputError(
                f"There is no {path}.", hint="Name a run folder, a logdir or an .xplane.pb."
            )
    found = diff_of(a, b)
    writers = ((json, found.to_json), (html, found.to_html), (markdown, found.to_markdown))
    is_taken = write_all((path, write) for path, write in writers if path is not None)
    if not is_taken and not quiet:
        _print(found)
    if open_page:
        open_in_browser(None if html == DASH else html, found.to_html)
    _fail_where_grown(found, fail_on_increase)


def _fail_where_grown(found: Diff, allowed: str | None) -> None:
    grown = found.exceeds(allowed) if allowed is not None else ""
    if grown:
        raise GrowthError(grown)


def _print(found: Diff) -> None:
    from analyzer.report.terminal.terminal_diff import print_diff

    with printing():
        print_diff(found.report, terminal())
