"""Compiles the phantom card's library into the wheel, where the wheel is built for Linux on x86-64.

The compiler is the machine's, or else the package ``ziglang``, which pip then brings for the time of
the build alone. Without either the wheel is built without the library, and says so when it is asked for.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


class PhantomHook(BuildHookInterface[Any]):
    """Adds ``analyzer/phantom/native/libphantom.so`` to the wheel."""

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling: a compiler where there is none."""
        return ["ziglang"] if _is_served() and _compiler() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library; an editable install compiles it at first use instead."""
        if version == "editable" or not _is_served():
            return
        compiler = _compiler()
        if compiler is None:
            self.app.display_warning("No compiler: this wheel has no phantom card.")
            return
        library = _library()
        target = Path(self.directory) / "phantom" / library.CORE
        library.build(target, compiler)
        build_data["force_include"][str(target)] = f"analyzer/phantom/native/{library.CORE}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _is_served() -> bool:
    return sys.platform == "linux" and platform.machine().lower() in ("x86_64", "amd64")


def _platform() -> str:
    """Return the wheel's platform: zig links for an old glibc, another compiler for this machine's."""
    return os.environ.get("PHANTOM_WHEEL_PLATFORM", "linux_x86_64")


def _compiler() -> list[str] | None:
    found: list[str] | None = _library().find_compiler()
    return found


def _library() -> Any:
    """Return the module that compiles; the package itself needs what is not installed here."""
    path = ROOT / "analyzer" / "phantom" / "core_build.py"
    spec = importlib.util.spec_from_file_location("phantom_compiling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
