"""Search loops of KerasTuner and Optuna that leave out trials whose model does not fit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.slow]

HEAD = """
import keras, numpy, analyzer

WIDTHS = [64, 3000]
data = numpy.random.rand(64, 64), numpy.random.rand(64, 1)


def build(width):
    model = keras.Sequential(
        [keras.Input((64,)), *(keras.layers.Dense(n, "relu") for n in (width, width, 1))]
    )
    model.compile("adam", "mse")
    return model
"""
LOOPS = {
    "keras_tuner": """
import keras_tuner


class FittingTuner(keras_tuner.RandomSearch):
    def run_trial(self, trial, *args, **kwargs):
        model = self.hypermodel.build(trial.hyperparameters)
        if not analyzer.fits(model, kwargs.get("batch_size", 32), limit="64MiB"):
            raise keras_tuner.errors.FailedTrialError("does not fit")
        return super().run_trial(trial, *args, **kwargs)


tuner = FittingTuner(
    lambda trial: build(trial.Choice("width", WIDTHS)), "val_loss", max_trials=2,
    max_consecutive_failed_trials=100,
)
tuner.search(*data, validation_data=data, verbose=0)
trials = tuner.oracle.trials.values()
print(sorted((trial.hyperparameters.get("width"), trial.status) for trial in trials))
""",
    "optuna": """
import optuna


def objective(trial):
    model = build(trial.suggest_categorical("width", WIDTHS))
    if not analyzer.fits(model, 32, limit="64MiB"):
        raise optuna.TrialPruned("does not fit")
    return model.fit(*data, verbose=0).history["loss"][-1]


study = optuna.create_study(sampler=optuna.samplers.GridSampler({"width": WIDTHS}))
study.optimize(objective, n_trials=2)
print(sorted((trial.params["width"], trial.state.name) for trial in study.trials))
""",
}
ENDS = {
    "keras_tuner": [(64, "COMPLETED"), (3000, "FAILED")],
    "optuna": [(64, "COMPLETE"), (3000, "PRUNED")],
}


@pytest.mark.parametrize("package", LOOPS)
def test_a_trial_that_does_not_fit_is_left_out(package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + LOOPS[package]],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ended.stdout.splitlines()[-1:] == [str(ENDS[package])], ended.stderr[-2000:]
