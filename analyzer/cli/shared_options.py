"""Options that several commands share, alone and in groups."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

from analyzer.capture.targets.target_spec import OPTIMIZER, parse_shapes
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.capture_request import BATCH_SIZE, CaptureOptions
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes

STEP: Final = "The step"
DEVICE: Final = "Where it runs"
REPLAY: Final = "Memory limit and what-if"
RESULT: Final = "Output"
_NOT_GIVEN: Final = (None, False, "")
_Group = TypeVar("_Group")


def option(
    help_text: str,
    *names: str,
    panel: str | None = None,
    is_rare: bool = False,
    **settings: Any,
) -> Any:
    """Return a Typer option that shows no default value.

    Args:
        help_text: The help text.
        *names: Names such as ``--open``; without any, Typer derives one from the parameter.
        panel: Heading in the help.
        is_rare: Whether only ``--help-all`` lists it.
        **settings: Other arguments of ``typer.Option``.
    """
    settings.setdefault("show_default", False)
    return typer.Option(*names, help=help_text, rich_help_panel=panel, hidden=is_rare, **settings)


_ADDRESS: Final = re.compile(r"(?:\w+://)?[^\s/]+:\d{1,5}")

in_step = partial(option, panel=STEP)
in_device = partial(option, panel=DEVICE)
in_replay = partial(option, panel=REPLAY)
in_result = partial(option, panel=RESULT)


def _show_all(context: typer.Context, is_wanted: bool) -> None:
    """Print the help with the rare options and exit."""
    if is_wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


def _check_scheduler(address: str) -> str:
    """Return the address of a Dask scheduler.

    Raises:
        InputError: it has no host and port.
    """
    if address and not _ADDRESS.fullmatch(address):
        raise InputError(
            f"--scheduler {address} is not an address.", hint="Write it as tcp://10.0.0.1:8786."
        )
    return address


HelpAll = Annotated[
    bool,
    option(
        "Show this message with the rare options, and exit.",
        "--help-all",
        callback=_show_all,
        is_eager=True,
        expose_value=False,
    ),
]
BatchSize = Annotated[
    int | None, in_step(f"Batch size if the target leaves it open; default {BATCH_SIZE}.", min=1)
]
Jit = Annotated[
    bool | None,
    in_step(
        "Compile with XLA; the default is the choice of the model or of Keras.", "--jit/--no-jit"
    ),
]
Shape = Annotated[
    list[str] | None,
    in_step("Input axes without the batch: NAME=224,224,3, or 224,224,3 for a single input."),
]
Remedies = Annotated[
    str,
    in_replay(
        "Also estimate the step with these changes: all, or half-batch, mixed-float16, "
        "accumulate-4, remat-activations, optimizer-sgd, freeze …; an unknown name lists them.",
        "--what-if",
        metavar="NAME,…",
    ),
]
InterOpThreads = Annotated[
    int | None,
    in_device("Threads that run ops in parallel; default this machine's.", min=1, is_rare=True),
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
        is_rare=True,
        callback=_check_scheduler,
    ),
]
Force = Annotated[bool, in_result("Replace files that exist.", "--force")]
Quiet = Annotated[bool, in_result("Print only the answer, in one line.", "--quiet", "-q")]
Verbose = Annotated[bool, in_result("Print each stage with its time on stderr.", "--verbose", "-v")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Options that define the step."""

    mode: Annotated[str, in_step("train or infer.")] = ""
    shape: Shape = None
    optimizer: Annotated[
        str, in_step(f"Keras optimizer; default the model's own, or {OPTIMIZER}.")
    ] = ""
    loss: Annotated[
        str, in_step("Keras loss; default the model's own, or one that fits the output.")
    ] = ""
    jit: Jit = None
    dtype_policy: Annotated[str, in_step("Keras dtype policy, such as mixed_float16.")] = ""

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
        in_replay("Replay under this memory limit, such as 8GiB; exit with 3 if it does not fit."),
    ] = None
    growth: Annotated[
        bool | None,
        in_replay(
            "Replay with a pool that grows on demand, or takes its limit at once.",
            "--growth/--no-growth",
        ),
    ] = None
    fragmentation_fraction: Annotated[
        float | None,
        in_replay(
            "Replay with this internal_fragmentation_fraction.", min=0.0, max=0.999, is_rare=True
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


@dataclass(frozen=True, slots=True)
class ProjectDefaults:
    """The options whose values come from pyproject.toml, by parameter name."""

    names: frozenset[str] = frozenset()

    def drop(self, group: _Group) -> _Group:
        """Return a group of options without these values, for targets that they do not apply to."""
        back = {
            field.name: field.default
            for field in fields(group)  # type: ignore[arg-type]
            if field.name in self.names
        }
        return replace(group, **back)  # type: ignore[type-var]


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each dataclass parameter of a command into one option per field; add ``--help-all``.

    Args:
        command: A function for Typer. It is called with the dataclasses, filled from the options. A
            parameter of the type ``ProjectDefaults`` receives the options set by pyproject.toml.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, type[Any]] = {}
    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    ]
    defaults_name = ""
    for parameter in signature.parameters.values():
        group = parameter.annotation
        if group is ProjectDefaults:
            defaults_name = parameter.name
            continue
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

    parameters.append(
        inspect.Parameter(
            "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll
        )
    )

    @wraps(command)
    def run(*, context: typer.Context, **values: Any) -> None:
        values.pop("help_all", None)
        if defaults_name:
            sources = {name: context.get_parameter_source(name) for name in values}
            values[defaults_name] = ProjectDefaults(
                frozenset(name for name in sources if "DEFAULT_MAP" in str(sources[name]))
            )
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
