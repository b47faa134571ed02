"""What a search loop is told again is not captured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import analyzer
from analyzer.fitting import fit_calls
from analyzer.fitting.fit_calls import KnownFits
from analyzer.model.errors import InputError


class Weight:
    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype, self.trainable = shape, "float32", True


class Functional:
    """Stands for a Keras model: its configuration, its layers' names, its weights."""

    made = 0

    def __init__(self, units: int, dtype: str = "float32") -> None:
        self.dtype = dtype
        Functional.made += 1
        self.name = f"functional_{Functional.made}"
        self.compiled = False
        self.units = units
        self.weights = [Weight(8, units)]

    def to_json(self) -> str:
        count = f"_{Functional.made - 1}" if Functional.made > 1 else ""
        inputs = {"class_name": "InputLayer", "config": {"name": f"input_layer{count}"}}
        dtype = {"class_name": "DTypePolicy", "config": {"name": self.dtype}}
        config = {"name": f"dense{count}", "units": self.units, "dtype": dtype}
        layers = [inputs, {"class_name": "Dense", "config": config}]
        config = {"name": self.name, "layers": layers, "output_layers": [[f"dense{count}", 0, 0]]}
        return json.dumps({"class_name": "Functional", "config": config})


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let nothing be captured: a batch fits up to 100. Return the batches that were asked for."""
    asked: list[int] = []

    def found(access: object, options: object, size: int, limits: object) -> bool:
        asked.append(size)
        return size <= 100

    monkeypatch.setattr(fit_calls, "_fits", found)
    monkeypatch.setattr(fit_calls, "_known", {})
    return asked


def test_a_thousand_trials_of_a_few_models_take_a_few_captures(captures: list[int]) -> None:
    told = [
        analyzer.fits(Functional(units), batch, limit="1GiB")
        for units in (16, 32, 64)
        for batch in [32, 64, 128, 256] * 100
    ]
    assert told == [batch <= 100 for _ in range(3) for batch in [32, 64, 128, 256] * 100]
    assert captures == [32, 64, 128] * 3


def test_another_policy_is_another_model(captures: list[int]) -> None:
    for dtype in ("float32", "bfloat16", "float32"):
        assert analyzer.fits(Functional(16, dtype), 32, limit="1GiB")
    assert len(captures) == 2


def test_another_limit_or_option_is_another_question(captures: list[int]) -> None:
    for limit in ("1GiB", "2GiB"):
        for jit in (True, False):
            assert analyzer.fits(Functional(16), 32, limit=limit, jit=jit)
    assert len(captures) == 4


def test_what_tells_nothing_of_itself_is_captured_each_time(captures: list[int]) -> None:
    class Own(Functional):
        pass

    for _ in range(3):
        assert analyzer.fits(Own(16), 32, limit="1GiB")
    assert len(captures) == 3


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(0, 50))
def test_what_is_known_is_right_and_asked_once(batches: list[int], last: int) -> None:
    known: Any = KnownFits()
    for batch in batches:
        holds = known.judge(batch)
        assert holds in (None, batch <= last)
        known.add(batch, fits=batch <= last)
        assert known.judge(batch) is (batch <= last)


def test_the_example_of_the_documents_runs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "fit.md").read_text(encoding="utf-8")
    code = text.split("class FittingTuner")[1].split("```")[0]
    compile("class FittingTuner" + code, "docs/fit.md", "exec")


@pytest.mark.parametrize("size", [0, -3])
def test_no_batch_at_all_is_no_question(size: int) -> None:
    with pytest.raises(InputError, match="too small"):
        analyzer.fits("step.py:build", size, limit="16MiB")
