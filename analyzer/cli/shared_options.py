"""Options that several commands share, alone and in groups."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

import msgspec
import typer
from typer.models import OptionInfo

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
    help_text: str, *names: str, panel: str | None = None, is_rare: bool = False, **settings: Any
) -> Any:
    """Return a Typer option that shows no default value.

    Without ``names``, Typer derives one from the parameter. ``panel`` is the heading in the help; only
    ``--help-all`` lists a rare option.
    """
    settings.setdefault("show_default", False)
    if "min" in settings:
        settings.setdefault("metavar", "N")  # not the range, which takes the room of the help text
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
    """Return the address of a Dask scheduler."""
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
    in_device(
        "Threads that run ops in parallel; default this machine's. With 1, runs repeat.",
        min=1,
        is_rare=True,
    ),
]
Assume = Annotated[
    list[str] | None,
    in_step(
        "Value that depends on data: iterations of a loop, size of a result, branch; with the name "
        "that the estimate prints. Repeatable.",
        metavar="NAME=N",
    ),
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
        """Return the options of a capture; all others keep their defaults."""
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
            "Replay with this fragmentation fraction of the allocator, 0 to 0.999.",
            metavar="N",
            is_rare=True,
        ),
    ] = None

    @property
    def what_if(self) -> WhatIf:
        """The settings of the replay."""
        fraction = self.fragmentation_fraction
        if fraction is not None and not 0 <= fraction <= 0.999:
            raise InputError(
                f"--fragmentation-fraction {fraction} is out of range.", hint="Use 0 to 0.999."
            )
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

    The command is called with the dataclasses, filled from the options. A parameter of the type
    ``ProjectDefaults`` receives the options set by pyproject.toml.
    """
    signature = inspect.signature(command, eval_str=True)
    make = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    groups: dict[str, type[Any]] = {}
    parameters = [make("context", annotation=typer.Context)]
    defaults_name = ""
    for parameter in signature.parameters.values():
        group = parameter.annotation
        if group is ProjectDefaults:
            defaults_name = parameter.name
        elif isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            hints = get_type_hints(group, include_extras=True)
            parameters += [
                make(field.name, default=field.default, annotation=hints[field.name])
                for field in fields(group)
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    parameters.append(make("help_all", default=False, annotation=HelpAll))

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

    ``reason`` is the end of the message, after the names of the options that have a value.
    """
    names = [
        f"--{name.replace('_', '-')}" for name, value in values.items() if value not in _NOT_GIVEN
    ]
    if names:
        raise InputError(f"{' and '.join(names)} {reason}.", hint=hint)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value outside ``choices``; an empty value is not checked."""
    if value and value not in choices:
        raise InputError(f"{name} {value} is unknown.", hint=f"Use {' or '.join(choices)}.")


_FILE: Final = "pyproject.toml"


def read_defaults(name: str, run: Callable[..., None], commands: Collection[str]) -> dict[str, Any]:
    """Return the defaults of the options of the command ``run``, by parameter name.

    Keys of ``[tool.analyze]`` hold for each command that has the option; those of
    ``[tool.analyze.trace]`` only for ``trace``. Options that name files are not read from there, because
    a project's file should not decide where a command writes.
    """
    file = _find_file()
    if file is None:
        return {}
    try:
        table = msgspec.toml.decode(file.read_bytes()).get("tool", {}).get("analyze", {})
    except (ValueError, OSError, AttributeError) as error:
        raise InputError(f"{file} cannot be read: {error}.", hint="Correct the file.") from None
    if not isinstance(table, dict):
        raise InputError(f"tool.analyze in {file} is no table.", hint="Write [tool.analyze].")
    by_key = dict(_list_options(run))
    shared = {key: value for key, value in table.items() if key not in commands}
    own = table.get(name, {})
    unknown = [key for key in own if key not in by_key] if isinstance(own, dict) else [name]
    if unknown:
        raise InputError(
            f"{unknown[0]} in [tool.analyze.{name}] of {file} is no option that it can set.",
            hint=f"analyze {name} --help-all lists the options.",
        )
    return {by_key[key]: value for key, value in {**shared, **own}.items() if key in by_key}


def _find_file() -> Path | None:
    """Return the nearest ``pyproject.toml`` of the working folder and its parents."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    return next((one / _FILE for one in (here, *here.parents) if (one / _FILE).is_file()), None)


def _list_options(run: Callable[..., None]) -> Iterator[tuple[str, str]]:
    """Yield the name of each option that a project may set, without dashes, and its parameter."""
    for parameter in inspect.signature(run, eval_str=True).parameters.values():
        kind, *settings = get_args(parameter.annotation) or (None,)
        for info in settings:
            if isinstance(info, OptionInfo) and Path not in (kind, *get_args(kind)):
                names = info.param_decls or (f"--{parameter.name.replace('_', '-')}",)
                yield names[0].split("/")[0].lstrip("-"), parameter.name
