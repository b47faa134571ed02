"""Opening a trace imports neither TensorFlow nor Keras: told by the import system itself."""

import subprocess
from pathlib import Path

from builders import complaints, run_python, sample_folder

# Runs before anything else in the child: any import of the two, by whatever way, is an error.
GUARD = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "tf_keras"):
            raise AssertionError(f"{name} was imported")
sys.meta_path.insert(0, Guard())
"""


def run(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_python("-c", GUARD + code, *arguments, cwd=cwd)


ENTRY = "from analyzer.cli import main\nmain()\n"


def test_a_page_is_written_without_networkx(tmp_path: Path) -> None:
    """Importing it and making its graph takes half a second, for which an export alone has a use."""
    (tmp_path / "networkx.py").write_text(
        "raise AssertionError('networkx was imported')"
    )
    code = f"sys.path.insert(0, {str(tmp_path)!r})\n{ENTRY}"
    sample = str(sample_folder("cnn"))
    files = ("--html", "a.html", "--json", "a.json", "--csv", "a.csv")
    done = run(code, "trace", sample, *files, "--limit", "1GiB", cwd=tmp_path)
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    done = run(code, "trace", sample, "--graph", "b.json", cwd=tmp_path)
    assert "networkx was imported" in done.stderr


def test_the_package(tmp_path: Path) -> None:
    code = f"""
import analyzer
result = analyzer.open_trace({str(sample_folder("cnn"))!r})
repr(result), result.graph, result._repr_html_(), result.allocations
for name in set(analyzer.__all__) - {{"MemoryCallback"}}:  # Keras' own class is its base
    getattr(analyzer, name)
assert not {{"tensorflow", "keras"}} & set(sys.modules)
"""
    done = run(code, cwd=tmp_path)
    assert (done.returncode, complaints(done.stderr)) == (0, "")
