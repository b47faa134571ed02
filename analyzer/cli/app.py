"""The Typer application: its commands, each loaded when it is run, and the options of none of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from analyzer.model.version import __version__

_HELP: Final = {"help_option_names": ["-h", "--help"]}

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "trace": (
        "analyzer.cli.trace_command:trace",
        "Capture the memory of a step, or open a trace, and say where it goes and what to change.",
    ),
    "estimate": (
        "analyzer.cli.estimate_command:estimate",
        "Predict the memory of a step without running it, and say where it goes and what to change.",
    ),
    "fit": (
        "analyzer.cli.fit_command:fit",
        "Find the largest batch (or input) that fits a card or a limit, without running the step.",
    ),
    "sweep": (
        "analyzer.cli.sweeps.sweep_command:sweep",
        "Estimate every combination of models, batches, cards and remedies, and show them in a table.",
    ),
    "gpus": (
        "analyzer.cli.gpu_list:gpus",
        "List the cards of the catalogue, or those that words mean.",
    ),
    "diff": (
        "analyzer.cli.diff_command:diff",
        "Compare two traced steps: peaks, categories, layers and ops, from A to B.",
    ),
    "oom": (
        "analyzer.cli.oom_command:oom",
        "Explain an out-of-memory log: what was asked, what was in the way, what the numbers support.",
    ),
    "device": (
        "analyzer.cli.running.device_command:device",
        "Show a card's memory as TensorFlow and as the driver count it, and name each difference.",
    ),
}
"""Name of a command -> the function that runs it, and the first line of its help."""


class Commands(TyperGroup):
    """Loads a command where it is run; the list of all of them needs none.

    Loading one takes what it works with (pandas, NumPy), which is most of the time of ``--help``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_listing = False
        for name, (_, first_line) in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=first_line)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order in which they are shown."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, loaded unless it is only listed; None for a name that is none."""
        if self._is_listing or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        return loaded(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the whole."""
        with self._listing():
            super().format_help(ctx, formatter)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._is_listing = True
        try:
            yield
        finally:
            self._is_listing = False


def loaded(name: str) -> Any:
    """Return a command of ``COMMANDS``, ready to be run."""
    module, _, function = COMMANDS[name][0].partition(":")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name=name, context_settings=_HELP)(getattr(import_module(module), function))
    return typer.main.get_command(alone)


app = typer.Typer(
    name="analyze",
    cls=Commands,
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
