"""Options that several commands share, alone and in groups."""

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

CAPTURE: Final = "How the step runs"
RESULT: Final = "Output"
REPLAY: Final = "Other allocator settings"
_NOT_GIVEN: Final = (None, False, "")


def option(help_text: str, *names: str, panel: str | None = None, **settings: Any) -> Any:
    """Return a Typer option that shows no default value.

    Args:
        help_text: The help text.
        *names: Names such as ``--open``; without any, Typer derives one from the parameter.
        panel: Heading in ``--help``.
        **settings: Other arguments of ``typer.Option``.
    """
    settings.setdefault("show_default", False)
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **settings)


def in_capture(help_text: str, *names: str, **settings: Any) -> Any:
    """Return an option listed under ``CAPTURE``."""
    return option(help_text, *names, panel=CAPTURE, **settings)


def in_result(help_text: str, *names: str, **settings: Any) -> Any:
    """Return an option listed under ``RESULT``."""
    return option(help_text, *names, panel=RESULT, **settings)


BatchSize = Annotated[
    int | None,
    in_capture(f"Batch size if the target leaves it open; default {BATCH_SIZE}.", min=1),
]
Jit = Annotated[
    bool | None,
    in_capture(
        "Compile with XLA; the default is the choice of the model or of Keras.", "--jit/--no-jit"
    ),
]
Shape = Annotated[
    list[str] | None,
    in_capture("Input axes without the batch: NAME=224,224,3, or 224,224,3 for a single input."),
]
InterOpThreads = Annotated[
    int | None,
    in_capture("Threads that run ops in parallel; default this machine's.", min=1),
]
Out = Annotated[
    Path | None, in_result("Run folder and TensorBoard logdir; default traces/NAME-TIME.")
]
JsonFile = Annotated[
    Path | None, in_result("Write the result as JSON; - is stdout, here and below.")
]
HtmlFile = Annotated[Path | None, in_result("Write the result as an HTML page.")]
CsvFile = Annotated[Path | None, in_result("Write the rows as CSV.")]
MarkdownFile = Annotated[Path | None, in_result("Write a summary for a pull request.")]
OpenPage = Annotated[bool, in_result("Open the page in a browser.", "--open")]
Scheduler = Annotated[
    str,
    in_result(
        "Use the Dask cluster of this scheduler, such as tcp://10.0.0.1:8786, instead of this machine's "
        "cores. Needs the extra `dask`, and the files on every worker.",
        metavar="ADDRESS",
    ),
]
Quiet = Annotated[bool, in_result("Print no tables.", "--quiet", "-q")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Options that define the step."""

    mode: Annotated[str, in_capture("train or infer.")] = ""
    shape: Shape = None
    optimizer: Annotated[
        str, in_capture(f"Keras optimizer; default the model's own, or {OPTIMIZER}.")
    ] = ""
    loss: Annotated[
        str, in_capture("Keras loss; default the model's own, or one that fits the output.")
    ] = ""
    jit: Jit = None
    dtype_policy: Annotated[str, in_capture("Keras dtype policy, such as mixed_float16.")] = ""

    def to_capture(self) -> CaptureOptions:
        """Return the options of a capture; all others keep their defaults.

        Raises:
            InputError: the mode is unknown, or a shape is invalid.
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
    """Allocator settings for the replay."""

    limit: Annotated[
        str | None,
        option(
            "Replay under this memory limit, such as 8GiB; exit with 3 if it does not fit.",
            panel=REPLAY,
        ),
    ] = None
    growth: Annotated[
        bool | None,
        option(
            "Replay with a pool that grows on demand, or takes its limit at once.",
            "--growth/--no-growth",
            panel=REPLAY,
        ),
    ] = None
    fragmentation_fraction: Annotated[
        float | None,
        option(
            "Replay with this internal_fragmentation_fraction.", panel=REPLAY, min=0.0, max=0.999
        ),
    ] = None

    @property
    def what_if(self) -> WhatIf:
        """The settings of the replay.

        Raises:
            InputError: the limit is not a size.
        """
        return WhatIf(
            memory_limit_bytes=None if self.limit is None else parse_bytes(self.limit),
            growth=self.growth,
            fragmentation_fraction=self.fragmentation_fraction,
        )


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each dataclass parameter of a command into one option per field.

    Args:
        command: A function for Typer. It is called with the dataclasses, filled from the options.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
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
    def run(**values: Any) -> None:
        filled = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **filled)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def refuse_options(reason: str, hint: str, **values: object) -> None:
    """Refuse options that would have no effect.

    Args:
        reason: The end of the message, after the option names; no full stop.
        hint: The fix.
        **values: Options by name, with underscores; None, False and empty count as not given.

    Raises:
        InputError: one of the options has a value.
    """
    names = [
        f"--{name.replace('_', '-')}" for name, value in values.items() if value not in _NOT_GIVEN
    ]
    if names:
        raise InputError(f"{' and '.join(names)} {reason}.", hint=hint)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value outside ``choices``; an empty value is not checked.

    Raises:
        InputError: the value is unknown.
    """
    if value and value not in choices:
        raise InputError(f"{name} {value} is unknown.", hint=f"Use {' or '.join(choices)}.")
