"""Edits of a user's source for remedies: one place for each, or none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.fitting.remedy_plans import plan_remedies
from analyzer.fitting.source_patches import copy_with_text, edit_source, write_diff
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError

TRAINING = '''"""Trains."""
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras
from keras import layers

BATCH = 32


def build():
    """Return the model."""
    net = keras.Sequential([keras.Input((8,)), layers.Dense(4, name="größe")])
    text = """first
second"""
    net.compile(
        optimizer="adam",
        loss="mse",
    )
    return net


if __name__ == "__main__":
    build().fit(x, y, batch_size=BATCH)
'''
STEP = """import tensorflow as tf

optimizer = tf.keras.optimizers.Adam(1e-3, beta_1=0.8, clipnorm=1.0)

@tf.function
def step(x):
    return x

def build():
    return step, (tf.ones([4]),)
"""


def plans(*names: str, own: bool = False) -> list[Any]:
    step = SimpleNamespace(
        infers=False,
        mode="train",
        jit=None,
        dtype_policy="float32",
        optimizer="Adam",
        own=own,
        layers=(),
    )
    note: Any = SimpleNamespace(
        step=step, variables=(), target=None, ops=(), layers=(), inputs=()
    )
    options = CaptureOptions(batch_size=32)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analyzer.fitting.remedy_plans.chain_of", lambda note: ())
        found = {plan.id: plan for plan in plan_remedies(options, note)}
    return [found[name] for name in names]


def edited(text: str, *names: str, batch: int = 32) -> str:
    return edit_source(text, plans(*names), batch)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("half-batch", "BATCH = 32", "BATCH = 16"),
        (
            "jit",
            '        loss="mse",\n',
            '        loss="mse", jit_compile=True,\n',
        ),
        ("optimizer-sgd", '"adam"', "keras.optimizers.SGD()"),
        (
            "mixed-float16",
            "import layers\n",
            'import layers\n\nkeras.config.set_dtype_policy("mixed_float16")\n',
        ),
    ],
)
def test_a_remedy_changes_one_place(name: str, before: str, after: str) -> None:
    assert edited(TRAINING, name) == TRAINING.replace(before, after)


def test_several_remedies_in_one_file() -> None:
    text = edited(TRAINING, "accumulate-4", "mixed-bfloat16", "jit")
    assert "BATCH = 8" in text
    assert "optimizer=keras.optimizers.Adam(gradient_accumulation_steps=4)," in text
    assert "jit_compile=True" in text
    assert 'set_dtype_policy("mixed_bfloat16")' in text


def test_a_step_of_its_own() -> None:
    assert "@tf.function(jit_compile=True)\n" in edited(STEP, "jit")
    new = "tf.keras.optimizers.Lion(learning_rate=1e-3, clipnorm=1.0)"
    assert new in edited(STEP, "optimizer-lion")
    with pytest.raises(InputError, match="no batch size"):
        edited(STEP, "half-batch")


@pytest.mark.parametrize(
    ("text", "name", "batch", "reason"),
    [
        (TRAINING, "half-batch", 64, "sets a batch of 32"),
        (TRAINING + "data.batch(8)\n", "half-batch", 32, "2 batch sizes"),
        (TRAINING + "other.compile()\n", "jit", 32, r"2 compile\(\) calls"),
        (TRAINING + "keras.optimizers.SGD()\n", "optimizer-lion", 32, "2 optimizers"),
        (TRAINING, "freeze", 32, "not one of arguments"),
        ("import re\nre.compile('a')\n", "jit", 32, "no tf.function"),
    ],
)
def test_a_choice_is_no_edit(text: str, name: str, batch: int, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        edited(text, name, batch=batch)


@pytest.mark.parametrize("ending", ["\n", ""])
def test_git_applies_the_patch(ending: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    text = TRAINING.rstrip("\n") + ending
    file.write_text(text)
    for name in ("half-batch", "mixed-float16", "accumulate-4"):
        changed = edited(text, name).replace("BATCH)", "BATCH)  # end")
        Path("x.patch").write_text(write_diff(file, text, changed))
        subprocess.run(["git", "apply", "x.patch"], check=True)
        assert file.read_text() == changed
        file.write_text(text)


def test_a_copy_sees_the_files_neighbours(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("SIZE = 4\n")
    file = tmp_path / "train.py"
    file.write_text("from helper import SIZE\n")
    copy = copy_with_text(
        file, "from helper import SIZE\nprint(SIZE)\n", tmp_path / "copies" / "a"
    )
    done = subprocess.run(["python3", copy], capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"
    assert file.read_text() == "from helper import SIZE\n"
