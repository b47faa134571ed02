"""Edits of a user's source for remedies: one place for each, or none."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.fitting.remedies import estimate_edited
from analyzer.fitting.remedy_plans import plan_remedies
from analyzer.fitting.source_edits import edit_source, write_diff
from analyzer.fitting.step_access import StepAccess
from analyzer.model.contract.child_messages import CaptureOptions
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


def edited(text: str, name: str, batch: int = 32) -> str:
    return edit_source(text, plans(name)[0], batch)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("half-batch", "BATCH = 32", "BATCH = 16"),
        (
            "jit",
            '        loss="mse",\n',
            '        loss="mse", jit_compile=True,\n',
        ),
        ("optimizer-sgd", '"adam"', '"sgd"'),
        (
            "mixed-float16",
            "import layers\n",
            'import layers\n\nimport keras\n\nkeras.config.set_dtype_policy("mixed_float16")\n',
        ),
    ],
)
def test_a_remedy_changes_one_place(name: str, before: str, after: str) -> None:
    assert edited(TRAINING, name) == TRAINING.replace(before, after)


@pytest.mark.parametrize(
    ("text", "name", "batch", "reason"),
    [
        (TRAINING, "half-batch", 64, "sets a batch of 32"),
        (TRAINING + "data.batch(8)\n", "half-batch", 32, "2 batch sizes"),
        (TRAINING + "other.compile()\n", "jit", 32, r"2 compile\(\) calls"),
        (TRAINING, "freeze", 32, "not one of an argument"),
        (TRAINING, "accumulate-4", 32, "not one of an argument"),
        ("import re\nre.compile('a')\n", "jit", 32, "no compile"),
        ("model.compile('adam', 'mse')\n", "jit", 32, "no names"),
        ("step()\n", "half-batch", 32, "no batch size"),
    ],
)
def test_a_choice_is_no_edit(text: str, name: str, batch: int, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        edited(text, name, batch=batch)


@pytest.mark.parametrize("ending", ["\n", ""])
def test_git_applies_the_patch(ending: str, folder: Path) -> None:
    file = folder / "train.py"
    text = TRAINING.rstrip("\n") + ending
    file.write_text(text)
    for name in ("half-batch", "mixed-float16", "jit"):
        changed = edited(text, name).replace("BATCH)", "BATCH)  # end")
        Path("x.patch").write_text(write_diff(file, text, changed))
        subprocess.run(["git", "apply", "x.patch"], check=True)
        assert file.read_text() == changed
        file.write_text(text)


def test_an_edited_copy_sees_the_files_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "helper.py").write_text("SIZE = 4\n")
    file = source / "train.py"
    file.write_text("from helper import SIZE\n")
    printed = []

    def capture_file(copy: Path, options: Any, folder: Path) -> Path:
        command = ["python3", copy]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        printed.append(done.stdout)
        return folder

    access = StepAccess(
        name="", folder=tmp_path, capture=lambda *_: Path(), capture_file=capture_file
    )
    step = "analyzer.fitting.step_access.estimate_folder"
    monkeypatch.setattr(step, lambda folder: None)
    text = "from helper import SIZE\nprint(SIZE)\n"
    estimate_edited(access, CaptureOptions(), file, text, "copy")
    assert printed == ["4\n"]
    assert file.read_text() == "from helper import SIZE\n"
