"""Defaults of options from the table ``[tool.analyze]`` of the nearest ``pyproject.toml``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from typer.models import OptionInfo

from analyzer.model.errors import InputError

_FILE: Final = "pyproject.toml"


def read_defaults(name: str, run: Callable[..., None], commands: Collection[str]) -> dict[str, Any]:
    """Return the defaults of the options of the command ``run``, by parameter name.

    Keys of ``[tool.analyze]`` hold for each command that has the option; those of
    ``[tool.analyze.trace]`` only for ``trace``. Options that name files are not read from there, because
    a project's file should not decide where a command writes.

    Raises:
        InputError: the file is no TOML, or the command's own table has an unknown key.
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
