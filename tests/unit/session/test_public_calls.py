"""The public functions have real, typed keywords."""

from __future__ import annotations

import inspect

import pytest

import analyzer


@pytest.mark.parametrize("name", ["trace", "estimate", "open_trace", "diff"])
def test_every_parameter_has_a_name_and_a_type(name: str) -> None:
    for parameter in inspect.signature(getattr(analyzer, name)).parameters.values():
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
        assert parameter.annotation is not inspect.Parameter.empty
