"""``analyze`` without arguments offers commands for a project's files and imports none of them."""

import shlex
import shutil
from pathlib import Path

import pytest
from builders import COMMAND, analyze, run_python, sample_folder

from analyzer.capture.targets.target_spec import parse_target
from analyzer.model.contract.child_messages import TargetKind

MODEL = """
import keras
raise SystemExit("This file was imported.")
def build_model(width=8):
    return keras.Sequential([keras.layers.Dense(width)])
def build_from(width):
    return keras.Sequential([keras.layers.Dense(width)])
small = keras.Model()
"""
TRAINING = "import tensorflow as tf\nmodel = load()\nmodel.fit(1)\n"


@pytest.fixture
def project(folder: Path) -> Path:
    files = {
        "my nets.py": MODEL,
        "train.py": TRAINING,
        "broken.py": "import keras\ndef (",
        "deep.py": "import keras\nx = " + "(" * 5000 + ")" * 5000,
        "other.py": "print('no framework')",
        "venv/lib/keras_model.py": MODEL,
        "logs/good.log": "Epoch 1/3",
        "logs/bad.log": "OOM when allocating tensor with shape[8]",
        "logs/answer.txt": "Out of memory: 2 GiB\nNext: analyze fit m.py:m\n",
        "saved/model.keras": "",
        "exported/saved_model.pb": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copytree(sample_folder("infer"), folder / "traces" / "infer")
    return folder


def test_each_find_has_commands_that_accept_it(project: Path) -> None:
    done = analyze()
    assert (done.code, done.err) == (0, "")
    lines = [line for line in done.out.splitlines() if line.startswith("  analyze")]
    named = {tuple(shlex.split(line)[1:3]) for line in lines}

    models = {name for command, name in named if command == "fit"}
    assert models == {"my nets.py:build_model", "my nets.py:small", "exported"}
    assert "answer.txt" not in done.out  # an output of ours is no log
    assert max(map(len, done.out.splitlines())) <= 80
    assert "and 1 more" in done.out  # model.keras is in a folder below
    assert {one for one in named if one[1] not in models} == {
        ("trace", "train.py"),
        ("trace", "traces/infer"),
        ("oom", "logs/bad.log"),
    }

    targets = {name: parse_target(name, scripts=True).kind for name in models}
    assert set(targets.values()) == {TargetKind.FILE, TargetKind.SAVED_MODEL}
    assert parse_target("train.py", scripts=True).kind is TargetKind.SCRIPT
    assert parse_target("traces/infer").kind is TargetKind.TRACE


def test_nothing_heavy_is_loaded(project: Path) -> None:
    code = (
        f"import runpy, sys\nsys.argv = ['analyze']\n"
        f"try:\n    runpy.run_path({str(COMMAND)!r}, run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "print([m for m in ('pandas', 'numpy', 'keras', 'tensorflow') if m in sys.modules])"
    )
    done = run_python("-c", code, cwd=project)
    assert "analyze fit" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
