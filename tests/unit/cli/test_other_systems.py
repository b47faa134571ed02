"""Reading, ``oom``, ``gpus`` and ``diff`` work with few packages, and without the names of POSIX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import INSTALLED, sample_folder

# Runs before anything else in the child. The light install of docs/start.md lacks these packages.
LIGHT = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
BLOCKED = {"tensorflow", "keras", "tf_keras", "tensorboard", "tensorboard_plugin_profile", "xprof"}
BLOCKED |= {"numba", "llvmlite", "joblib"}
sys.meta_path.insert(0, Guard())
"""
WINDOWS = """
import os, signal
BLOCKED |= {"fcntl", "resource", "pwd", "grp", "termios", "tty"}
for name in ("fork", "mkfifo", "killpg", "getuid", "geteuid", "wait4", "sysconf"):
    delattr(os, name)
for name in ("SIGHUP", "SIGCHLD", "SIGKILL", "SIGTSTP", "pthread_sigmask", "sigtimedwait"):
    delattr(signal, name)
"""
ENTRY = "from analyzer.cli import main\nmain()\n"
LOG = (
    "OOM when allocating tensor with shape[256,60,60,128] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n"
)


def run(guard: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", guard + ENTRY, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(INSTALLED)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "guard",
    [
        pytest.param(LIGHT, id="light", marks=pytest.mark.slow),
        pytest.param(LIGHT + WINDOWS, id="windows"),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["trace", str(sample_folder("cnn")), "--json", "a.json", "--html", "a.html"],
        ["oom", "train.log"],
        ["gpus", "a100"],
        ["diff", str(sample_folder("cnn")), str(sample_folder("cnn"))],
    ],
    ids=lambda arguments: arguments[0],
)
def test_it_works(arguments: list[str], guard: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    done = run(guard, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", ["estimate", pytest.param("fit", marks=pytest.mark.slow)])
def test_a_step_needs_tensorflow(command: str, tmp_path: Path) -> None:
    done = run(LIGHT, command, "keras:MobileNetV2", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "analyze: The package tensorflow is not installed"
    )
