"""The public functions: real keywords, and one clear error for a wrong one."""

from __future__ import annotations

import inspect

import pytest

import analyzer


@pytest.mark.parametrize(
    ("name", "wrong", "close"),
    [
        ("trace", "batchsize", "'batch_size'"),
        ("estimate", "optimiser", "'optimizer'"),
        ("open_trace", "hosts", "'host'"),
    ],
)
def test_a_misspelled_keyword_names_the_close_ones(name: str, wrong: str, close: str) -> None:
    with pytest.raises(TypeError, match=f"no keyword '{wrong}'; did you mean .*{close}"):
        getattr(analyzer, name)("keras:MobileNetV2", **{wrong: 4})


@pytest.mark.parametrize("name", ["trace", "estimate", "open_trace", "diff"])
def test_every_parameter_has_a_name_and_a_type(name: str) -> None:
    for parameter in inspect.signature(getattr(analyzer, name)).parameters.values():
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
        assert parameter.annotation is not inspect.Parameter.empty
