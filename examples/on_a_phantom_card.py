"""Run a script on a card that is not there, and print its memory: on_a_phantom_card.py t4 SCRIPT ARGS.

TensorFlow's runtime is real, kernels do nothing (benchmarks/results/phantom.md); Linux on x86-64.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from analyzer.phantom.phantom_environment import (
    PhantomOptions,
    make_phantom_environment,
    parse_cards,
)

_RUN = """
import runpy, sys
from analyzer.phantom.convolution_choices import register_convolutions
from analyzer.phantom.phantom_environment import parse_cards
register_convolutions(parse_cards(sys.argv[1]))
sys.argv[:] = sys.argv[2:]
kept = runpy.run_path(sys.argv[0], run_name="__main__")
import analyzer
print(analyzer.device())
"""

if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(
            "on_a_phantom_card.py CARD SCRIPT [ARGS], such as t4 examples/memory_growth.py"
        )
    with tempfile.TemporaryDirectory() as folder:
        options = PhantomOptions(gpus=parse_cards(sys.argv[1]))
        environment = {"TF_CPP_MIN_LOG_LEVEL": "1", **os.environ}
        environment |= make_phantom_environment(options, Path(folder))
        command = [sys.executable, "-c", _RUN, *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
