"""Options that several commands share, alone and in groups."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import msgspec
import typer

from analyzer.capture.targets.target_spec import OPTIMIZER, parse_shapes
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract import capture_request
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import MOST_STEPS
from analyzer.model.errors import InputError
from analyzer.model.tables import read_table
from analyzer.model.units import parse_bytes

_Group = TypeVar("_Group")


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of ``options.toml``, which explains the fields."""

    help: str
    panel: str | None = None
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    min: int | None = None
    is_rare: bool = False
    is_argument: bool = False

    def to_parameter(self, default: Any, **settings: Any) -> Any:
        """Return the Typer parameter; the help shows no default, and no range, which takes its room."""
        text = self.help.format_map(_CONSTANTS)
        metavar = self.metavar or (None if self.min is None else "N")
        settings |= {"help": text, "metavar": metavar, "show_default": False}
        if self.is_argument:
            wanted = ... if default is inspect.Parameter.empty else default
            return typer.Argument(wanted, **settings)
        settings |= {"rich_help_panel": self.panel, "hidden": self.is_rare, "min": self.min}
        return typer.Option(default, *self.flags, **settings)


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


def _list_gpus(name: str) -> str:
    from analyzer.cli.gpus_command import list_gpus

    return list_gpus(name)


_CONSTANTS: Final = {
    **vars(capture_request),
    "OPTIMIZER": OPTIMIZER,
    "MOST_STEPS": MOST_STEPS,
    "ASSUMPTIONS": ", ".join(one.name for one in capture_request.ASSUMPTIONS),
}
"""Values of the names in the help texts."""
_CALLBACKS: Final[dict[str, dict[str, Any]]] = {
    "gpu": {"callback": _list_gpus, "is_eager": True},
    "scheduler": {"callback": _check_scheduler},
    "help_all": {"callback": _show_all, "is_eager": True, "expose_value": False},
}
"""What Typer calls with the value of a parameter."""
TABLES: Final = read_table("cli/options.toml", dict[str, dict[str, Description]])


def _describe(command: str, name: str, default: Any) -> Any:
    """Return a command's parameter for Typer, with its help; the default if no table has it."""
    row = TABLES.get(command, {}).get(name) or TABLES["shared"].get(name)
    return default if row is None else row.to_parameter(default, **_CALLBACKS.get(name, {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Options that define the step."""

    mode: str = ""
    shape: list[str] | None = None
    optimizer: str = ""
    loss: str = ""
    jit: bool | None = None
    dtype_policy: str = ""

    def to_capture(self, **others: Any) -> CaptureOptions:
        """Return the options of a capture; ``others`` are fields that define no step."""
        check_choice("--mode", self.mode, ("train", "infer", "generate"))
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "shape"}
        return CaptureOptions(**own, shapes=parse_shapes(self.shape or []), **others)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Allocator settings for the replay."""

    limit: str | None = None
    growth: bool | None = None
    fragmentation_fraction: float | None = None

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
                make(one.name, default=one.default, annotation=hints[one.name])
                for one in fields(group)
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    parameters.append(make("help_all", default=False, annotation=bool))
    parameters = [
        one.replace(default=_describe(command.__name__, one.name, one.default))
        for one in parameters
    ]

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
        field.name: field.default
        for field in fields(group)  # type: ignore[arg-type]
        if "DEFAULT_MAP" in str(context.get_parameter_source(field.name))
    }
    return replace(group, **back)  # type: ignore[type-var]


def read_defaults(command: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
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
    shared = {key: value for key, value in table.items() if key not in TABLES["commands"]}
    return {by_key[key]: value for key, value in {**shared, **own}.items() if key in by_key}
