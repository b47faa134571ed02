"""A TensorFlow or Keras that is newer than what was read of their insides is said so."""

import subprocess
import sys

import pytest

SCRIPT = """
from analyzer.capture.private_names import READ_IN, list_newer_versions

(major, minor), keras = READ_IN["TensorFlow"], READ_IN["Keras"]
same = {"TensorFlow": f"{major}.{minor}.7", "Keras": "3.3.0"}
assert list(list_newer_versions(same)) == []
assert list(list_newer_versions()) == []
newer = {"TensorFlow": f"{major}.{minor + 1}.0-rc1", "Keras": f"{keras[0] + 1}.0"}
first, second = list_newer_versions(newer)
assert first.startswith(f"TensorFlow {major}.{minor + 1}.0-rc1 is newer than {major}.{minor},"), first
assert second.startswith(f"Keras {keras[0] + 1}.0 is newer than"), second
assert list(list_newer_versions({"TensorFlow": "nightly.of.today"})) == []
"""


@pytest.mark.tf
def test_newer_release_adds_a_line() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=600)
