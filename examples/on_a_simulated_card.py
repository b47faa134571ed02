"""Run a script on a card that is not there, and print its memory: on_a_simulated_card.py t4 SCRIPT ARGS.

TensorFlow's runtime is real, kernels do nothing (benchmarks/results/simulated-card.md); Linux on x86-64.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.simulated_card.card_environment import make_card_environment

_RUN = """
import runpy, sys
from analyzer.simulated_card.core_calls import register_convolutions
from analyzer.simulated_card.card_environment import parse_cards
register_convolutions(parse_cards(sys.argv[1]))
sys.argv[:] = sys.argv[2:]
kept = runpy.run_path(sys.argv[0], run_name="__main__")
import analyzer
print(analyzer.device())
"""

if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(
            "on_a_simulated_card.py CARD SCRIPT [ARGS], such as t4 examples/memory_growth.py"
        )
    with tempfile.TemporaryDirectory() as folder:
        options = CaptureOptions(gpu=sys.argv[1])
        environment = {"TF_CPP_MIN_LOG_LEVEL": "1", **os.environ}
        environment |= make_card_environment(options, Path(folder))
        command = [sys.executable, "-c", _RUN, *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
