"""Check the platform and the installed TensorFlow and Keras, without importing them."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from analyzer.model.errors import InputError

OLDEST_KERAS: Final = (3, 9)
"""First Keras with ``Variable._initialize_with_initializer``, which makes variables without memory."""
_BUILDS: Final = (
    *("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tensorflow-macos"),
    *("tf-nightly", "tf-nightly-cpu", "tf-nightly-rocm"),
)
"""Distributions that install the same package ``tensorflow``."""
_ELSEWHERE: Final = "Reading traces, analyze oom, gpus and diff work without it."
_VERSION: Final = re.compile(r"^__version__\s*=\s*[\"'](\d+)\.(\d+)([^\"']*)", re.MULTILINE)


def check_packages() -> None:
    """Raise InputError on Windows, and if TensorFlow or Keras is missing, or Keras is too old."""
    if sys.platform == "win32":
        raise InputError(
            "Steps cannot be run or built on Windows; traces, analyze oom, gpus and diff work.",
            hint="Use WSL 2: run `wsl --install`, then install tf-memory-analyzer there.",
        )
    for package in ("tensorflow", "keras"):
        if find_folder(package) is None:
            raise InputError(
                f"The package {package} is not installed, and this command needs it.",
                hint=f"pip install {package}. {_ELSEWHERE}",
            )
    keras = read_keras_version()
    if keras is not None and keras[0] < OLDEST_KERAS:
        oldest = ".".join(map(str, OLDEST_KERAS))
        raise InputError(
            f"Keras {keras[1]} is installed; Keras {oldest} or newer is needed.",
            hint=f"pip install 'keras>={oldest}'.",
        )


def find_folder(package: str) -> Path | None:
    """Return the folder of an installed package; None if there is none."""
    module = sys.modules.get(package)
    if module is not None:
        return Path(module.__file__).parent if module.__file__ else None
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # such as a broken finder of the user's
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def read_keras_version() -> tuple[tuple[int, int], str] | None:
    """Return Keras' major and minor version, and the whole version; None if unknown."""
    folder = find_folder("keras")
    if folder is None:
        return None
    for name in ("src/version.py", "version.py"):
        with contextlib.suppress(OSError):
            if found := _VERSION.search((folder / name).read_text(encoding="utf-8")):
                major, minor, rest = found.groups()
                return (int(major), int(minor)), f"{major}.{minor}{rest}"
    return None


def describe_builds() -> str:
    """Return a line if several builds of TensorFlow share one folder; empty otherwise."""
    builds = []
    for name in _BUILDS:
        with contextlib.suppress(PackageNotFoundError):
            builds.append(f"{name} {version(name)}")
    folder = "are installed over each other in one folder. Uninstall them, and install one."
    return f"{' and '.join(builds)} {folder}" if len(builds) > 1 else ""
