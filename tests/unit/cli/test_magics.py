"""The magic in a real IPython shell."""

import re
import subprocess
from pathlib import Path

import pytest
from builders import run_python

pytestmark = pytest.mark.tf

SESSION = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "analyzer")
shell.run_cell("import tensorflow as tf")
shell.run_cell("%%memory\\nx = tf.ones([512, 1024]); y = x + 1.0; del x")
shell.run_cell("%%memory\\nraise ValueError('of the cell')")
"""


FULL_CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "analyzer")
def run(cell):
    shell.run_cell(cell, store_history=True)
run("import tensorflow as tf\\nkept = []")
run("raise ValueError('of the cell')")
run("# comment\\nfor _ in range(9):\\n    kept.append(tf.ones([2048, 1024]))")
run("print('next cell', len(kept))")
run("tf.ones([2, 3]) @ tf.ones([2, 3])")
run("raise ValueError('of the last cell')")
"""


def run_session(
    session: str, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("IPython")
    environment |= {"IPYTHONDIR": str(folder), "TF_CPP_MIN_LOG_LEVEL": "2"}
    return run_python("-c", session, cwd=folder, **environment)


@pytest.mark.slow
def test_a_cell_without_memory_is_explained_below_its_traceback(tmp_path: Path) -> None:
    ended = run_session(FULL_CELLS, tmp_path, TF_CPU_BFC_MEM_LIMIT_IN_MB="48")
    assert ended.returncode == 0, ended.stderr
    before, error, after = ended.stdout.partition("OOM when allocating")
    assert error, ended.stdout
    explained, _, later = after.partition("next cell 5")
    assert "8.00 MiB requested with 46.00 MiB in use" in explained
    assert "Next:" not in explained, "no file holds the text"
    held = re.search(r"([\d.]+) MiB  the global list `kept` +cell 3:3\n", explained)
    assert held, explained
    assert 40 <= float(held[1]) <= 48  # five tensors of 8 MiB, in chunks
    assert "Who holds it" not in before + later, "only this error is explained"
    assert "of the last cell" in later


def test_a_cell_is_measured_and_what_goes_wrong_is_one_line(tmp_path: Path) -> None:
    ended = run_session(SESSION, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "Peak 4.00 MiB, 2.00 MiB still held." in ended.stdout
    assert "float32[512,1024]" in ended.stdout
    assert "of the cell" in ended.stdout
    assert "Traceback" not in ended.stderr
