"""The Typer application and its options that belong to no command."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from analyzer.commands.diff import diff
from analyzer.commands.estimate import estimate
from analyzer.commands.trace import trace
from analyzer.version import __version__

_HELP: Final = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="analyze",
    help="Where the memory of a TensorFlow or Keras step goes, what fits, and what to change.",
    no_args_is_help=True,
    context_settings=_HELP,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 fine, 1 a bug of ours, 2 bad input, 3 over a limit, 4 grew, 5 the step "
    "ran out of memory, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"analyze {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where the memory of a TensorFlow or Keras step goes, what fits, and what to change."""


app.command(name="trace", context_settings=_HELP)(trace)
app.command(name="estimate", context_settings=_HELP)(estimate)
app.command(name="diff", context_settings=_HELP)(diff)
