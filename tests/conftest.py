"""What every test sees: the helpers beside this file, and an environment without TensorFlow's knobs."""

import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import analyzer

sys.path.insert(0, str(Path(__file__).parent))
from workbench import TARGETS, Workbench

# Neither chance nor a busy machine decides: the examples are the same each time and may take long.
settings.register_profile(
    "fixed",
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fixed")

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell began the tests in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # they were begun by nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_KNOBS = (
    "TF_CPU_",
    "TF_GPU_",
    "TF_FORCE_",
    "TF_XLA_",
    "XLA_FLAGS",
    "CUDA_VISIBLE_DEVICES",
    "COLUMNS",
)


_CACHE = "TF_MEMORY_ANALYZER_CACHE"


def pytest_configure(config: pytest.Config) -> None:
    """Give all workers one cache: the simulated card is made once, and the user's stays as it is."""
    if hasattr(config, "workerinput"):
        return

    folder = tempfile.mkdtemp(prefix="tests-cache-")
    os.environ[_CACHE] = folder
    config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))


_SECONDS = {"tf": 6.0, "browser": 2.0, "workbench": 4.0}
"""About what a test with such a mark or fixture takes on one core; others take a tenth of a second."""


def _estimate_seconds(item: pytest.Item) -> float:
    if "workbench" in getattr(item, "fixturenames", ()):
        return _SECONDS["workbench"]

    marks = [_SECONDS.get(mark.name, 0.1) for mark in item.iter_markers()]
    return max(marks, default=0.1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: each goes to one worker whole, and a long one at the end leaves the
    others without work."""
    lasts: Counter[Path] = Counter()
    for item in items:
        lasts[item.path] += _estimate_seconds(item)

    items.sort(key=lambda item: -lasts[item.path])


_SHARING = {
    "cards": (
        "simulated_card",
        "estimate_by_running",
        "estimate_gpu",
        "causes",
        "values_on_card",
    ),
    "cpu": ("trace_command", "estimate", "estimate_compiled"),
}
"""Files whose tests share captures and processes on the workbench, by a name for them."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, and files that share captures to one worker."""
    from xdist.scheduler import LoadFileScheduling

    places = {
        f"test_{name}.py": place for place, names in _SHARING.items() for name in names
    }

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return places.get(file.rpartition("/")[2], file)

    return Scheduling(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what runs TensorFlow's processes."""
    if item.path.is_relative_to(TARGETS.parent):
        item.add_marker("tf")


def pytest_report_header() -> str:
    return f"the package tested: {Path(analyzer.__file__).parent}"


_USELESS_TOOL = """#!/bin/sh
[ "$1" = --version ] && echo "V99.9.99" && exit 0
echo "a simulated card used a tool of CUDA's from the PATH" >&2
exit 1
"""


@pytest.fixture(scope="session")
def useless_cuda_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tools of CUDA's that fail: simulated cards must not need real ones."""
    folder = tmp_path_factory.mktemp("cuda-tools")
    for name in ("ptxas", "nvlink", "fatbinary"):
        (folder / name).write_text(_USELESS_TOOL)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, useless_cuda_tools: Path
) -> None:
    monkeypatch.setenv("PATH", str(useless_cuda_tools), prepend=os.pathsep)
    for name in list(os.environ):
        if name.startswith(_KNOBS):
            monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def workbench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """Commands that share their captures, and processes that have imported TensorFlow."""
    folder = tmp_path_factory.mktemp("workbench")
    for target in TARGETS.glob("*.py"):
        shutil.copy(target, folder)

    with Workbench(folder, tmp_path_factory.mktemp("servers")) as commands:
        yield commands
