"""The magics in a real IPython shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import INSTALLED

pytestmark = pytest.mark.tf

SESSION = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "analyzer")
shell.run_cell("import tensorflow as tf")
shell.run_cell("%%memory\\nx = tf.ones([512, 1024]); y = x + 1.0; del x")
shell.run_cell("%%memory\\nraise ValueError('of the cell')")
shell.run_line_magic("device", "")
shell.run_line_magic("memory", "")
shell.run_cell("import keras; m = keras.Sequential([keras.Input((9,)), keras.layers.Dense(2)])")
found = shell.run_line_magic("memory", "-e m")
print("parameters", found.document["categories_at_peak"]["parameter"])
shell.run_line_magic("memory", "n")
shell.run_line_magic("memory", "-e no_such_file.py:model")
"""


def test_a_cell_is_measured_and_what_goes_wrong_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    environment = {
        **os.environ,
        "PYTHONPATH": str(INSTALLED),
        "IPYTHONDIR": str(tmp_path),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    ended = subprocess.run(
        [sys.executable, "-c", SESSION],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Peak 4.00 MiB, 2.00 MiB still held." in ended.stdout
    assert "float32[512,1024]" in ended.stdout
    assert "of the cell" in ended.stdout
    assert "%%memory above a cell" in ended.stderr
    assert "parameters 80" in ended.stdout  # twenty numbers of 4 bytes
    assert "no_such_file.py" in ended.stderr
    assert "Traceback" not in ended.stderr
