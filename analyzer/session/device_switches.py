"""Settings that decide how much memory TensorFlow takes of a card, and the effect of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

_LONGEST: Final = 200  # characters of a value
_OTHER: Final = "other"
_JAX_PREFIXES: Final = ("XLA_PYTHON_CLIENT_", "XLA_CLIENT_MEM_FRACTION", "JAX_")
_JAX_EFFECT: Final = "read by JAX only: no effect on TensorFlow's pool"

_PROGRAM_SETTINGS: Final[Mapping[str, str]] = {
    "allow_growth": "set in the program: the pool grows on demand",
    "per_process_gpu_memory_fraction": "limit: this share of the card; above 1, unified memory",
    "experimental": "set in the program: virtual devices with their own limits, the async allocator",
}
"""Effects of the fields of ``GPUOptions``."""


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    Attributes:
        name: The environment variable, or the field of TensorFlow's ``GPUOptions``.
        value: Its text, cut if it is long; untrusted.
        does: The effect of this value.
    """

    name: str
    value: str
    does: str


@cache
def _effects() -> dict[str, dict[str, str]]:
    text = (files("analyzer.session") / "device_switches.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, dict[str, str]])


def switches_of(
    environment: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> tuple[Switch, ...]:
    """Return the active settings, first the fields of ``GPUOptions`` that the program set."""
    return tuple(
        Switch(name=name, value=value[:_LONGEST], does=effect)
        for name, value, effect in _active_settings(environment, settings or {})
    )


def _active_settings(
    environment: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    for name, value in settings.items():
        if value and name in _PROGRAM_SETTINGS:
            yield name, value, _PROGRAM_SETTINGS[name]
    for name, effects in _effects().items():
        value = environment.get(name, "")
        if name in environment:
            is_hidden = name == "CUDA_VISIBLE_DEVICES" and not value.strip()
            yield name, value, effects.get("-1" if is_hidden else value.strip(), effects[_OTHER])
    for name in sorted(environment):
        if name.startswith(_JAX_PREFIXES):
            yield name, environment[name], _JAX_EFFECT
