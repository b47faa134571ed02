"""The public functions have typed options."""

import inspect

import pytest

import analyzer


@pytest.mark.parametrize("name", ["trace", "estimate", "fit", "open_trace", "diff"])
def test_every_parameter_has_a_type(name: str) -> None:
    for parameter in inspect.signature(getattr(analyzer, name)).parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="batchsize"):
        analyzer.estimate("keras:VGG16", batchsize=8)
