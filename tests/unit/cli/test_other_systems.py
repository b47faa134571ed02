"""Reading, ``oom``, ``gpus`` and ``diff`` work with few packages, and without the names of POSIX."""

import shutil
import subprocess
from pathlib import Path

import pytest
from builders import run_python, sample_folder, sample_trace

# Runs before anything else in the child. The light install of docs/start.md lacks these packages.
LIGHT = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
BLOCKED = {"tensorflow", "keras", "tf_keras", "tensorboard", "tensorboard_plugin_profile", "xprof"}
sys.meta_path.insert(0, Guard())
"""
WINDOWS = """
# The standard library of Linux needs these names itself, so it is imported before.
import asyncio, concurrent.futures.process, mmap, multiprocessing.pool, os, signal, subprocess
BLOCKED |= {"fcntl", "resource", "pwd", "grp", "termios", "tty"}
for name in ("fork", "mkfifo", "killpg", "getuid", "geteuid", "wait4", "sysconf", "sysconf_names"):
    delattr(os, name)
for name in ("O_NONBLOCK", "O_CLOEXEC", "WNOHANG", "RTLD_NOW", "sched_getaffinity", "statvfs"):
    delattr(os, name)
for name in ("PROT_READ", "MAP_PRIVATE", "MAP_ANONYMOUS"):
    delattr(mmap, name)
for name in ("SIGHUP", "SIGCHLD", "SIGKILL", "SIGTSTP", "pthread_sigmask", "sigtimedwait"):
    delattr(signal, name)
"""
MACOS = """
import os, signal
del os.sched_getaffinity, os.sysconf_names["SC_AVPHYS_PAGES"], signal.sigtimedwait
"""
ENTRY = "from analyzer.cli import main\nmain()\n"
LOG = (
    "OOM when allocating tensor with shape[256,60,60,128] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n"
)


def run(guard: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_python("-c", guard + ENTRY, *arguments, cwd=cwd)


@pytest.mark.parametrize(
    "guard",
    [
        pytest.param(LIGHT, id="light", marks=pytest.mark.slow),
        pytest.param(LIGHT + MACOS, id="macos", marks=pytest.mark.slow),
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


@pytest.mark.parametrize(
    "system", [WINDOWS, pytest.param(MACOS, marks=pytest.mark.slow)]
)
def test_traces_of_two_hosts(system: str, tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / "run"
    folder.mkdir(parents=True)
    for host in ("one", "two"):
        shutil.copy(sample_trace("cnn"), folder / f"{host}.xplane.pb.gz")
    done = run(LIGHT + system, "trace", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "two" in done.stdout


def test_a_step_needs_wsl_on_windows(tmp_path: Path) -> None:
    # Other libraries are imported before: on "win32" they look for modules of Windows.
    guard = (
        f"{LIGHT}{WINDOWS}import analyzer.cli.app, pandas, rich.console\nimport sys\n"
    )
    guard += "sys.platform = 'win32'\n"
    done = run(guard, "trace", "keras:MobileNetV2", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("WSL 2")) == (2, 1), done.stderr
    assert "Traceback" not in done.stderr


def test_a_step_needs_tensorflow(tmp_path: Path) -> None:
    done = run(LIGHT, "estimate", "keras:MobileNetV2", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "analyze: The package tensorflow is not installed"
    )
