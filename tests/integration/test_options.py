"""Every option on every form of target: honoured, or refused in one line; never passed over."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import run_python

TARGETS = Path(__file__).parent / "targets"

T = "option_targets.py:"
SENTENCES: dict[str, tuple[str, dict[str, Any], str]] = {
    # name: target, options, what the refusal says
    "step, batch": (T + "step", {"batch_size": 4}, "--batch-size cannot be used"),
    "signature, fixed": (
        T + "fixed_signature",
        {"batch_size": 4},
        "'features' has a batch of 6",
    ),
    "shape": (T + "network", {"shapes": {"": [10]}}, "does not fit the input's axes 8"),
    "infer, optimizer": (
        T + "compiled",
        {"mode": "infer", "optimizer": "sgd"},
        "inference uses",
    ),
    "own policy": (
        T + "own_policy",
        {"dtype_policy": "mixed_bfloat16"},
        "its layers follow float32",
    ),
    "saved, train": ("saved", {"mode": "train"}, "holds no training step"),
}
HONOURED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: target, options, what the step is then
    "model": (
        T + "network",
        {"optimizer": "sgd", "loss": "mae", "batch_size": 4, "jit": False},
        {
            "optimizer": "SGD",
            "loss": "mean_absolute_error",
            "batch_size": 4,
            "jit": False,
        },
    ),
    "compiled, alone": (
        T + "compiled",
        {},
        {"optimizer": "RMSprop", "loss": "mae", "notes": []},
    ),
    "signature, parameters": (
        T + "unnamed_signature",
        {"batch_size": 4, "shapes": {"tokens": [7], "pair_1": [5, 2]}},
        {
            "shapes": [[4, 7], [4, 3], [4, 5, 2]],
        },
    ),
    "file": (
        "model.keras",
        {"batch_size": 4, "optimizer": "sgd"},
        {"optimizer": "SGD"},
    ),
}


BROKEN = {
    # name: target, its code, options, what is said
    "imports": (
        "imports.py:x",
        "import nothing_like_it",
        {},
        "No module named 'nothing_like_it'",
    ),
    "syntax": ("bad.py:x", "def (:", {}, "SyntaxError"),
    "preset": (
        "hub:gemma_2b_en",
        "raise ImportError('No module named keras_hub')",
        {},
        "pip install keras-hub",
    ),
    "damaged": ("damaged.keras", "no archive", {}, "is damaged"),
    "call reads values": (
        "reads.py:x",
        """import keras
class Reader(keras.Model):
    def call(self, x):
        return x[: int(keras.ops.sum(x))]
x = Reader()
""",
        {"shapes": {"": [4]}},
        "reads.py:4: TypeError",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each case; one process for all."""
    folder = tmp_path_factory.mktemp("options")
    for name in ("option_targets.py", "run_options.py"):
        shutil.copy(TARGETS / name, folder)
    cases = {
        name: case[:2]
        for table in (SENTENCES, HONOURED)
        for name, case in table.items()
    }
    for name, (target, code, options, _) in BROKEN.items():
        if code:
            file = target.replace("hub:gemma_2b_en", "keras_hub.py").partition(":")[0]
            (folder / file).write_text(code)
        cases[f"broken, {name}"] = (target, options)
    done = run_python(
        "run_options.py", cwd=folder, given=json.dumps(cases), CUDA_VISIBLE_DEVICES="-1"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


@pytest.mark.parametrize("name", SENTENCES)
def test_refused(name: str, results: dict[str, Any]) -> None:
    assert SENTENCES[name][2] in results[name].get("error", results[name])


@pytest.mark.parametrize("name", HONOURED)
def test_honoured(name: str, results: dict[str, Any]) -> None:
    wanted, found = HONOURED[name][2], results[name]
    assert "error" not in found, found
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize("name", BROKEN)
def test_broken_target_is_reported(name: str, results: dict[str, Any]) -> None:
    assert BROKEN[name][3] in results[f"broken, {name}"].get("error", "")
