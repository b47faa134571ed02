"""Compiles the simulated card's library into a wheel for Linux on x86-64.

The compiler is the machine's, or the package ``ziglang``, which pip installs for the build only.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


PLATFORM = os.environ.get("SIMULATED_CARD_WHEEL_PLATFORM", "linux_x86_64")
"""The wheel's platform tag. A manylinux tag makes zig the compiler, which links for an old glibc;
``any`` leaves the library out."""


class SimulatedCardHook(BuildHookInterface[Any]):
    """Adds ``analyzer/simulated_card/native/libsimulated_card.so`` to the wheel."""

    def dependencies(self) -> list[str]:
        """Return the packages that the build needs beside hatchling."""
        needs_zig = (
            PLATFORM.startswith("manylinux") or _library().find_compiler() is None
        )
        return ["ziglang"] if _is_served() and needs_zig else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library; an editable install compiles it at first use instead."""
        if version == "editable" or not _is_served():
            return
        library = _library()
        is_portable = PLATFORM.startswith("manylinux")
        compiler = library.find_zig() if is_portable else library.find_compiler()
        if compiler is None:
            self.app.display_warning("No compiler: this wheel has no simulated card.")
            return
        self._folder = (
            tempfile.TemporaryDirectory()
        )  # not in dist, which is uploaded whole
        target = Path(self._folder.name) / library.CORE
        library.build(target, compiler)
        build_data["force_include"][str(target)] = (
            f"analyzer/simulated_card/native/{library.CORE}"
        )
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{PLATFORM}"


def _is_served() -> bool:
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return PLATFORM != "any" and sys.platform == "linux" and is_x86


def _library() -> Any:
    """Return the module that compiles, without importing the package and its dependencies."""
    path = ROOT / "analyzer" / "simulated_card" / "core_build.py"
    spec = importlib.util.spec_from_file_location("simulated_card_compiling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
