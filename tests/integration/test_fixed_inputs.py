"""What is told of functions from their graphs alone, which are traced; nothing runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
SCRIPT = Path(__file__).parent / "targets" / "fixed_inputs.py"


def test_what_is_compiled_in() -> None:
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found == {
        "a shape is looked at": [],
        "a shape is computed": [0],
        "through a branch": [0, 1, 2],
        "through a loop": [1],
        "in a called function": [0],
        "written in part": [1, 0],  # XLA makes a new value instead
        "in a branch or loop": [3, 5],
    }
