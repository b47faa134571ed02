"""What every test sees: the helpers beside this file, and an environment without TensorFlow's knobs."""

import os
import sys
from pathlib import Path

import pytest

import analyzer

sys.path.insert(0, str(Path(__file__).parent))

_KNOBS = (
    "TF_CPU_",
    "TF_GPU_",
    "TF_FORCE_",
    "TF_XLA_",
    "XLA_FLAGS",
    "CUDA_VISIBLE_DEVICES",
    "COLUMNS",
)


def pytest_report_header() -> str:
    return f"the package tested: {Path(analyzer.__file__).parent}"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(_KNOBS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", "off")  # nothing of ours in the user's folder
