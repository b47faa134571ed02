"""Options that several commands share, alone and in groups."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from analyzer.capture.targets.target_spec import OPTIMIZER, parse_shapes
from analyzer.model.contract.child_messages import BATCH_SIZE, CaptureOptions, WhatIf
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes

# Headings of the options in the help.
STEP = "The step"
PLACE = "Where it runs"
OUTPUT = "Output"
WHAT_IF = "Memory limit and what-if"


def option(
    text: str,
    *flags: str,
    panel: str = OUTPUT,
    metavar: str | None = None,
    least: int | None = None,
) -> Any:
    """Return a Typer option; the help shows no default, and no range, which takes its room."""
    if metavar is None and least is not None:
        metavar = "N"

    return typer.Option(
        *flags,
        help=text,
        rich_help_panel=panel,
        metavar=metavar,
        min=least,
        show_default=False,
    )


def argument(text: str, metavar: str | None = None) -> Any:
    """Return a Typer argument."""
    return typer.Argument(help=text, metavar=metavar, show_default=False)


BatchSize = Annotated[
    int | None,
    option(
        f"Batch size if the target leaves it open; default {BATCH_SIZE}.",
        panel=STEP,
        least=1,
    ),
]
Assume = Annotated[
    list[str] | None,
    option(
        "Assume a value that depends on data (iterations of a loop, size of a result, "
        "branch), by the name that the estimate prints. Repeatable.",
        panel=STEP,
        metavar="NAME=N",
    ),
]
WhatIfNames = Annotated[
    str,
    option(
        "Also estimate the step with these changes: all, or half-batch, mixed-float16, "
        "accumulate-4, recompute-blocks, optimizer-sgd, freeze …; an unknown name "
        "lists "
        "them.",
        "--what-if",
        panel=WHAT_IF,
        metavar="NAME,…",
    ),
]
Scheduler = Annotated[
    str,
    option(
        "Use the Dask cluster of this scheduler, such as tcp://10.0.0.1:8786, instead "
        "of "
        "this machine's cores. Needs the extra `dask`, and the files on every worker.",
        metavar="ADDRESS",
    ),
]
Json = Annotated[
    Path | None, option("Write the result as JSON; - is stdout, here and below.")
]
Full = Annotated[
    bool,
    option("With --json -: every row, not only the most important ones.", "--full"),
]
Csv = Annotated[Path | None, option("Write the rows as CSV.")]
Markdown = Annotated[Path | None, option("Write a summary for a pull request.")]
Force = Annotated[bool, option("Replace files that exist.", "--force")]
Quiet = Annotated[bool, option("Print only the answer, in one line.", "--quiet", "-q")]
Verbose = Annotated[
    bool,
    option(
        "Print the details, and each stage with its time on stderr.",
        "--verbose",
        "-v",
    ),
]


@dataclass(frozen=True, kw_only=True)
class StepFlags:
    """Options that define the step."""

    mode: Annotated[
        str,
        option(
            "train, infer, or generate (a language model of keras-hub).",
            panel=STEP,
        ),
    ] = ""
    shape: Annotated[
        list[str] | None,
        option(
            "Input axes without the batch: NAME=224,224,3, or 224,224,3 for a single input.",
            panel=STEP,
        ),
    ] = None
    optimizer: Annotated[
        str,
        option(
            f"Keras optimizer; default the model's own, or {OPTIMIZER}.",
            panel=STEP,
        ),
    ] = ""
    loss: Annotated[
        str,
        option(
            "Keras loss; default the model's own, or a loss for its output.",
            panel=STEP,
        ),
    ] = ""
    jit: Annotated[
        bool | None,
        option(
            "Compile with XLA; the default is the choice of the model or of Keras.",
            "--jit/--no-jit",
            panel=STEP,
        ),
    ] = None
    dtype_policy: Annotated[
        str, option("Keras dtype policy, such as mixed_float16.", panel=STEP)
    ] = ""
    inter_op_threads: Annotated[
        int | None,
        option(
            "Threads that run ops in parallel; default this machine's. With 1, runs repeat.",
            panel=PLACE,
            least=1,
        ),
    ] = None

    def to_capture(self, **others: Any) -> CaptureOptions:
        """Return the options of a capture; ``others`` are fields that define no step."""
        check_choice("--mode", self.mode, ("train", "infer", "generate"))

        own = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name != "shape"
        }

        return CaptureOptions(**own, shapes=parse_shapes(self.shape or []), **others)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Allocator settings for the replay."""

    limit: Annotated[
        str | None,
        option(
            "Replay under this memory limit, such as 8GiB; exit with 3 if it does not fit.",
            panel=WHAT_IF,
        ),
    ] = None
    growth: Annotated[
        bool | None,
        option(
            "Replay with a pool that grows on demand, or takes its limit at once.",
            "--growth/--no-growth",
            panel=WHAT_IF,
        ),
    ] = None

    @property
    def what_if(self) -> WhatIf:
        """The settings of the replay."""
        limit_bytes = None if self.limit is None else parse_bytes(self.limit)
        return WhatIf(memory_limit_bytes=limit_bytes, growth=self.growth)


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each dataclass parameter of a command into one option per field.

    The command is called with the dataclasses, filled from the options.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters = []

    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and is_dataclass(kind):
            groups[name] = kind
            own = get_type_hints(kind, include_extras=True)
            parameters += [
                _make_parameter(one.name, own[one.name], one.default)
                for one in fields(kind)
            ]
        else:
            parameters.append(_make_parameter(name, kind, parameter.default))

    @wraps(command)
    def run(**values: Any) -> None:
        filled = {}

        for name, group in groups.items():
            own = {field.name: values.pop(field.name) for field in fields(group)}
            filled[name] = group(**own)

        command(**values, **filled)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}

    return run


def _make_parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=kind)


def refuse_options(reason: str, hint: str, **values: object) -> None:
    """Refuse options without effect; ``reason`` follows the names of those with a value."""
    given = [name for name, value in values.items() if value not in (None, False, "")]
    if given:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"{names} {reason}.", hint)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value outside ``choices``; an empty value is not checked."""
    if value and value not in choices:
        raise InputError(
            f"{name} {value} is unknown.",
            f"Use {' or '.join(choices)}.",
        )
