"""The step of a Keras model as a target takes the memory of the same model's ``fit`` in a script."""

import importlib.util
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from simulated_cards import NEEDS_CARDS

FILE = Path(__file__).parents[3] / "benchmarks" / "fit" / "fit_as_script.py"


def load_benchmark() -> Any:
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[FILE.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("sliced_32_adam", ""),
        pytest.param("sliced_32_adam", "t4", marks=NEEDS_CARDS),
        ("resized_16_adam", ""),
    ],
)
def test_a_target_and_fit_in_a_script_take_the_same_memory(name: str, gpu: str) -> None:
    """The batch is freed after its last use: held, it would be half of the peak."""
    options = Namespace(gpu=gpu, no_jit=True, estimate=False)
    assert load_benchmark().compare(name, options)
