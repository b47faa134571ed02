"""Options that more than one command takes, declared once: one by one, and in groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from analyzer.capture.targets.target_spec import OPTIMIZER, parse_shapes
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.capture_request import BATCH_SIZE, CaptureOptions
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes

CAPTURE: Final = "How the step is run"
RESULT: Final = "What comes out"
REPLAY: Final = "What if the allocator were set otherwise"
_OPEN: Final = (None, False, "")

BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Size of the batch, where the target leaves it open; default {BATCH_SIZE}.",
        rich_help_panel=CAPTURE,
        show_default=False,
    ),
]
Mode = Annotated[
    str, typer.Option(help="train or infer.", rich_help_panel=CAPTURE, show_default=False)
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="Axes of an input without the batch: NAME=224,224,3, or 224,224,3 for the only one.",
        rich_help_panel=CAPTURE,
    ),
]
OptimizerName = Annotated[
    str,
    typer.Option(
        help=f"Keras optimizer; default the model's own, or {OPTIMIZER}.",
        rich_help_panel=CAPTURE,
        show_default=False,
    ),
]
Loss = Annotated[
    str,
    typer.Option(
        help="Keras loss; default the model's own, or one that fits its output.",
        rich_help_panel=CAPTURE,
        show_default=False,
    ),
]
Jit = Annotated[
    bool | None,
    typer.Option(
        "--jit/--no-jit",
        help="Compile with XLA; default what the model or Keras chooses on this device.",
        rich_help_panel=CAPTURE,
        show_default=False,
    ),
]
DtypePolicy = Annotated[
    str,
    typer.Option(
        help="Keras dtype policy, such as mixed_float16.",
        rich_help_panel=CAPTURE,
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Run folder and TensorBoard logdir; default traces/NAME-TIME.",
        rich_help_panel=RESULT,
        show_default=False,
    ),
]
NoSave = Annotated[
    bool,
    typer.Option(
        "--no-save",
        help="Keep no run folder: write nothing but the files named here.",
        rich_help_panel=RESULT,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace an earlier run in --out.", rich_help_panel=RESULT),
]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        help="Write the result as JSON; - for stdout, here and below.", rich_help_panel=RESULT
    ),
]
HtmlFile = Annotated[
    Path | None, typer.Option(help="Write the report page.", rich_help_panel=RESULT)
]
CsvFile = Annotated[
    Path | None, typer.Option(help="Write every allocation.", rich_help_panel=RESULT)
]
GraphFile = Annotated[
    Path | None,
    typer.Option(help="Write the graph: .graphml, or .json for node-link.", rich_help_panel=RESULT),
]
MarkdownFile = Annotated[
    Path | None,
    typer.Option(help="Write a summary for a pull request.", rich_help_panel=RESULT),
]
PerfettoFile = Annotated[
    Path | None,
    typer.Option(
        help="Write counters and lifetimes for Perfetto or chrome://tracing.",
        rich_help_panel=RESULT,
    ),
]
ParquetFile = Annotated[
    Path | None,
    typer.Option(help="Write every allocation as Parquet; needs pyarrow.", rich_help_panel=RESULT),
]
MaxPeak = Annotated[
    str | None,
    typer.Option(
        help="Exit with 3 if the allocated peak is above this, such as 10GiB.",
        rich_help_panel=RESULT,
    ),
]
Limit = Annotated[
    str | None,
    typer.Option(
        help="Replay under this memory limit, such as 8GiB; exit with 3 if it does not fit.",
        rich_help_panel=REPLAY,
    ),
]
Growth = Annotated[
    bool | None,
    typer.Option(
        "--growth/--no-growth",
        help="Replay with the pool growing on demand, or taken whole at the start.",
        rich_help_panel=REPLAY,
        show_default=False,
    ),
]
FragmentationFraction = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=0.999,
        help="Replay with this internal_fragmentation_fraction.",
        rich_help_panel=REPLAY,
    ),
]
OpenPage = Annotated[
    bool, typer.Option("--open", help="Open the page in a browser.", rich_help_panel=RESULT)
]
Scheduler = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Do the work on the Dask cluster of this scheduler, such as tcp://10.0.0.1:8786; default "
        "this machine's cores. Needs the extra `dask`, and the files on the workers, too.",
        rich_help_panel=RESULT,
        show_default=False,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no tables.", rich_help_panel=RESULT)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How the step is made; each field is an option."""

    mode: Mode = ""
    shape: Shape = None
    optimizer: OptimizerName = ""
    loss: Loss = ""
    jit: Jit = None
    dtype_policy: DtypePolicy = ""

    def captured(self) -> CaptureOptions:
        """Return them as a capture takes them, all else left open.

        Raises:
            InputError: a mode is not known, or a shape is none.
        """
        check_choice("--mode", self.mode, ("train", "infer"))
        return CaptureOptions(
            mode=self.mode,
            shapes=parse_shapes(self.shape or []),
            optimizer=self.optimizer,
            loss=self.loss,
            jit=self.jit,
            dtype_policy=self.dtype_policy,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Settings of the allocator to replay under; each field is an option."""

    limit: Limit = None
    growth: Growth = None
    fragmentation_fraction: FragmentationFraction = None

    @property
    def what_if(self) -> WhatIf:
        """They as the replay takes them.

        Raises:
            InputError: the limit is not a size.
        """
        return WhatIf(
            memory_limit_bytes=None if self.limit is None else parse_bytes(self.limit),
            growth=self.growth,
            fragmentation_fraction=self.fragmentation_fraction,
        )


def taking_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the groups among its parameters.

    Args:
        command: A function for Typer. A parameter whose type is a dataclass is a group: its fields
            become options, in the parameter's place, and the command is called with the group.
    """
    known = inspect.signature(command, eval_str=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in known.parameters.values():
        group = parameter.annotation
        if not (isinstance(group, type) and is_dataclass(group)):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(group)
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    run.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def refuse_given(why: str, hint: str, **given: object) -> None:
    """Refuse options that would be passed over.

    Args:
        why: What follows the options' names; no full stop.
        hint: What to do.
        **given: Each option by its name with underscores; None, False and empty are not given.

    Raises:
        InputError: one of them was given.
    """
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in _OPEN]
    if names:
        raise InputError(f"{' and '.join(names)} {why}.", hint=hint)


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of ``choices``.

    Args:
        option: The option, for the error.
        value: What was given; empty where nothing was.
        choices: What it may be.

    Raises:
        InputError: it is none of them.
    """
    if value and value not in choices:
        raise InputError(f"{option} {value} is not known.", hint=f"Use {' or '.join(choices)}.")
