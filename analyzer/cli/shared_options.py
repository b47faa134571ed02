"""Options that several commands share, alone and in groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import msgspec
import typer

from analyzer.capture.targets.target_spec import OPTIMIZER, parse_shapes
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.capture_request import BATCH_SIZE as DEFAULT_BATCH_SIZE
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes

_Group = TypeVar("_Group")


def option(
    help_text: str,
    *names: str,
    panel: str | None = None,
    default: Any = None,
    is_rare: bool = False,
    **settings: Any,
) -> Any:
    """Return a Typer option that shows no default value: the default of a command's parameter.

    Without ``names``, Typer derives one from the parameter. ``panel`` is the heading in the help; only
    ``--help-all`` lists a rare option.
    """
    settings.setdefault("show_default", False)
    if "min" in settings:
        settings.setdefault("metavar", "N")  # not the range, which takes the room of the help text
    return typer.Option(
        default, *names, help=help_text, rich_help_panel=panel, hidden=is_rare, **settings
    )


argument = partial(typer.Argument, show_default=False)
in_step = partial(option, panel="The step")
in_device = partial(option, panel="Where it runs")
in_replay = partial(option, panel="Memory limit and what-if")
in_result = partial(option, panel="Output")


def _show_all(context: typer.Context, is_wanted: bool) -> None:
    """Print the help with the rare options and exit."""
    if is_wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


def _check_scheduler(address: str) -> str:
    """Return the address of a Dask scheduler."""
    if address and ":" not in address:
        hint = "Write it as tcp://10.0.0.1:8786."
        raise InputError(f"--scheduler {address} is not an address.", hint=hint)
    return address


HELP_ALL: Final = option(
    "Show this message with the rare options, and exit.",
    "--help-all",
    default=False,
    callback=_show_all,
    is_eager=True,
    expose_value=False,
)
BATCH_SIZE: Final = in_step(
    f"Batch size if the target leaves it open; default {DEFAULT_BATCH_SIZE}.", min=1
)
REMEDIES: Final = in_replay(
    "Also estimate the step with these changes: all, or half-batch, mixed-float16, "
    "accumulate-4, remat-activations, optimizer-sgd, freeze …; an unknown name lists them.",
    "--what-if",
    default="",
    metavar="NAME,…",
)
INTER_OP_THREADS: Final = in_device(
    "Threads that run ops in parallel; default this machine's. With 1, runs repeat.",
    min=1,
    is_rare=True,
)
ASSUME: Final = in_step(
    "Value that depends on data: iterations of a loop, size of a result, branch; with the name "
    "that the estimate prints. Repeatable.",
    metavar="NAME=N",
)
JSON: Final = in_result("Write the result as JSON; - is stdout, here and below.")
CSV: Final = in_result("Write the rows as CSV.")
MARKDOWN: Final = in_result("Write a summary for a pull request.")
SCHEDULER: Final = in_result(
    "Use the Dask cluster of this scheduler, such as tcp://10.0.0.1:8786, instead of this machine's "
    "cores. Needs the extra `dask`, and the files on every worker.",
    default="",
    metavar="ADDRESS",
    is_rare=True,
    callback=_check_scheduler,
)
FORCE: Final = in_result("Replace files that exist.", "--force", default=False)
QUIET: Final = in_result("Print only the answer, in one line.", "--quiet", "-q", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Options that define the step."""

    mode: str = in_step("train or infer.", default="")
    shape: list[str] | None = in_step(
        "Input axes without the batch: NAME=224,224,3, or 224,224,3 for a single input."
    )
    optimizer: str = in_step(
        f"Keras optimizer; default the model's own, or {OPTIMIZER}.", default=""
    )
    loss: str = in_step(
        "Keras loss; default the model's own, or one that fits the output.", default=""
    )
    jit: bool | None = in_step(
        "Compile with XLA; the default is the choice of the model or of Keras.", "--jit/--no-jit"
    )
    dtype_policy: str = in_step("Keras dtype policy, such as mixed_float16.", default="")

    def to_capture(self, **others: Any) -> CaptureOptions:
        """Return the options of a capture; ``others`` are fields that define no step."""
        check_choice("--mode", self.mode, ("train", "infer"))
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "shape"}
        return CaptureOptions(**own, shapes=parse_shapes(self.shape or []), **others)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Allocator settings for the replay."""

    limit: str | None = in_replay(
        "Replay under this memory limit, such as 8GiB; exit with 3 if it does not fit."
    )
    growth: bool | None = in_replay(
        "Replay with a pool that grows on demand, or takes its limit at once.",
        "--growth/--no-growth",
    )
    fragmentation_fraction: float | None = in_replay(
        "Replay with this fragmentation fraction of the allocator, 0 to 0.999.",
        metavar="N",
        is_rare=True,
    )

    @property
    def what_if(self) -> WhatIf:
        """The settings of the replay."""
        limit, fraction = self.limit, self.fragmentation_fraction
        if fraction is not None and not 0 <= fraction <= 0.999:
            message = f"--fragmentation-fraction {fraction} is out of range."
            raise InputError(message, hint="Use 0 to 0.999.")
        return WhatIf(
            memory_limit_bytes=None if limit is None else parse_bytes(limit),
            growth=self.growth,
            fragmentation_fraction=fraction,
        )


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each dataclass parameter of a command into one option per field; add ``--help-all``.

    The command is called with the dataclasses, filled from the options.
    """
    signature = inspect.signature(command, eval_str=True)
    make = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    groups: dict[str, type[Any]] = {}
    parameters = []
    for parameter in signature.parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            hints = get_type_hints(group)
            parameters += [
                make(field.name, default=field.default, annotation=hints[field.name])
                for field in fields(group)
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    parameters.append(make("help_all", default=HELP_ALL, annotation=bool))

    @wraps(command)
    def run(**values: Any) -> None:
        values.pop("help_all", None)
        filled = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **filled)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def refuse_options(reason: str, hint: str, **values: object) -> None:
    """Refuse options without effect; ``reason`` follows the names of those with a value."""
    given = [name for name, value in values.items() if value not in (None, False, "")]
    if given:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"{names} {reason}.", hint=hint)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value outside ``choices``; an empty value is not checked."""
    if value and value not in choices:
        raise InputError(f"{name} {value} is unknown.", hint=f"Use {' or '.join(choices)}.")


def drop_project_defaults(context: typer.Context, group: _Group) -> _Group:
    """Return a group without the values of pyproject.toml, for targets that they do not apply to."""
    back = {
        field.name: getattr(field.default, "default", None)
        for field in fields(group)  # type: ignore[arg-type]
        if "DEFAULT_MAP" in str(context.get_parameter_source(field.name))
    }
    return replace(group, **back)  # type: ignore[type-var]


def read_defaults(
    command: Any, kinds: Mapping[str, Any], commands: Collection[str]
) -> dict[str, Any]:
    """Return the project's defaults of a Click command's options, by parameter name.

    Keys of ``[tool.analyze]`` hold for each command that has the option; those of
    ``[tool.analyze.trace]`` only for ``trace``. Options that name files are not read from there, because
    a project's file should not decide where a command writes. ``kinds`` are the types by name.
    """
    try:
        here = Path.cwd()
    except OSError:
        return {}
    files = (folder / "pyproject.toml" for folder in (here, *here.parents))
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return {}
    name = command.name
    try:
        tools = msgspec.toml.decode(file.read_bytes()).get("tool", {})
        table = msgspec.convert(tools.get("analyze", {}), dict[str, Any])
        own = msgspec.convert(table.get(name, {}), dict[str, Any])
    except (ValueError, OSError, AttributeError) as error:
        raise InputError(f"{file} cannot be read: {error}.", hint="Correct the file.") from None
    by_key = {
        one.opts[0].lstrip("-"): one.name
        for one in command.params
        if one.param_type_name == "option" and "Path" not in str(kinds.get(one.name))
    }
    if unknown := own.keys() - by_key:
        raise InputError(
            f"{min(unknown)} in [tool.analyze.{name}] of {file} is no option that it can set.",
            hint=f"analyze {name} --help-all lists the options.",
        )
    shared = {key: value for key, value in table.items() if key not in commands}
    return {by_key[key]: value for key, value in {**shared, **own}.items() if key in by_key}
