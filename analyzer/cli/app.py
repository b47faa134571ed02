"""The Typer application. Each command's module is imported when the command runs."""

import os
import shutil
from collections.abc import Callable
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from analyzer.cli.shared_options import expand_groups
from analyzer.model import __version__
from analyzer.model.errors import ExitCode

COMPLETION = "_ANALYZE_COMPLETE"  # by which a shell asks for completions

# columns; in fewer the help has no panels, which would cut options' names
_LEAST_PANEL = 80
_HELP = {"help_option_names": ["-h", "--help"]}

# The exception for wrong arguments: Click's, or that of Typer's own copy of Click.
UsageError: Any = typer.BadParameter.__base__

# The first line of each command's help, in display order.
COMMANDS = {
    "trace": (
        "Capture the memory of a step, or open a trace, and explain its use and how to reduce it."
    ),
    "estimate": (
        "Estimate the memory of a step without a card, and explain its use and how to reduce it."
    ),
    "fit": "Find the largest batch (or input) that fits a card or a limit.",
    "gpus": "List the cards of the catalogue, by search words or with -v all.",
    "diff": "Compare two steps, or find the commit that changed a step's peak most.",
    "oom": (
        "Explain an out-of-memory log: the request, the cause, and the fixes that its "
        "numbers support."
    ),
    "device": ("Show the memory of this machine's cards as the driver counts it."),
    "skill": "Print the skill for coding agents, or install it into a project.",
    "mcp": "Serve the commands to coding agents over the Model Context Protocol.",
}


class Commands(TyperGroup):
    """Import a command's module, with pandas and NumPy, only when the command runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, first_line in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=first_line)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command's name, the command, imported, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


def load_function(name: str) -> Callable[..., None]:
    """Import the function of a command of ``COMMANDS``; it has one parameter per option."""
    return expand_groups(getattr(import_module(f"analyzer.cli.{name}_command"), name))


def load_command(name: str) -> Any:
    """Import a command of ``COMMANDS`` and return it."""
    run = load_function(name)
    paragraphs = cleandoc(run.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    form: Any = "rich" if shutil.get_terminal_size().columns >= _LEAST_PANEL else None
    alone = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=form,
    )

    alone.command(name=name, help=text, context_settings=_HELP)(run)

    return typer.main.get_command(alone)


def run_app(arguments: list[str]) -> int:
    """Run the command of the arguments and return its exit code."""
    command = typer.main.get_command(app)
    if COMPLETION in os.environ:  # a shell asks for the completions of its line
        command(prog_name="analyze")

    if not arguments and _print_offers():
        return ExitCode.OK

    try:
        with command.make_context("analyze", arguments or ["--help"]) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code

    return ExitCode.OK


def _print_offers() -> bool:
    """Print the commands for the files of this folder; return whether there are any."""
    from analyzer.cli.first_run import describe_folder
    from analyzer.report.untrusted import printable

    lines = describe_folder(Path())  # also works in a removed folder
    if not lines:
        return False

    closing = "`analyze gpus` lists the cards beside t4, `analyze --help` all commands."
    for line in (*lines, closing):
        typer.echo(printable(line, 1000))

    return True


app = typer.Typer(
    name="analyze",
    cls=Commands,
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
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Memory of TensorFlow and Keras steps: its use, the largest batch, and how to reduce it."""
