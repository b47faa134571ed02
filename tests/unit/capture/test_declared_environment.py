"""What a target's file sets for TensorFlow reaches the process before TensorFlow is imported."""

from pathlib import Path

import pytest
from builders import listing, refusal

from analyzer.capture.process.child_environment import read_declared_environment

SOURCE = """
import os; os.environ["TF_USE_LEGACY_KERAS"] = "1"
from os import environ
environ.setdefault("TF_DETERMINISTIC_OPS", "1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "0"
os.environ["PATH"] = "/nowhere"
os.environ["TF_SEED"] = os.environ["HOME"]
def later():
    os.environ["TF_XLA_FLAGS"] = "--tf_xla_auto_jit=2"
"""


def test_settings_above_the_imports_are_found_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    found = read_declared_environment(file, {"TF_ENABLE_ONEDNN_OPTS": "1"})
    assert found == {"TF_USE_LEGACY_KERAS": "1", "TF_DETERMINISTIC_OPS": "1"}


def test_a_file_that_is_not_python_is_left_to_its_loader(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    for damage in (b"def (:\n", b"\0\0", b"(" * 5000):
        file.write_bytes(damage)
        assert read_declared_environment(file, {}) == {}
    file.unlink()
    assert read_declared_environment(file, {}) == {}


@pytest.mark.parametrize("target", ["train.py", "train.py:model"])
def test_a_file_that_selects_jax_is_refused(target: str, folder: Path) -> None:
    Path("train.py").write_text(
        'import os\nos.environ["KERAS_BACKEND"] = "jax"\nimport keras\n'
    )
    said = refusal("trace", target)
    assert "train.py, KERAS_BACKEND is jax" in said
    assert "`analyze trace LOGDIR`" in said
    assert listing(folder) == {"train.py"}
