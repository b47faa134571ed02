"""The core of the phantom card: the library in the wheel, or one compiled at first use.

A wheel for Linux on x86-64 carries it (``hatch_build.py``). Where it is missing, as in a checkout
that is used in place, it is compiled with the compiler that is found: ``$CC``, ``cc``, ``gcc``,
``clang``, or the package ``ziglang``.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from pathlib import Path

from analyzer.model.errors import InputError
from analyzer.phantom.core_build import CORE, NATIVE, build, find_compiler


def check_platform() -> None:
    """Raise InputError on a machine that phantom cards are not made for."""
    machine = platform.machine().lower()
    if sys.platform != "linux" or machine not in ("x86_64", "amd64"):
        raise InputError(
            f"Phantom cards need Linux on x86-64, and this is {sys.platform} on {machine}.",
            hint="analyze estimate --gpu NAME predicts here.",
        )


def core_library(folder: Path) -> Path:
    """Return the core: the wheel's, else one compiled into ``folder``, once for each source.

    Raises:
        InputError: there is none, and none can be compiled.
    """
    packaged = NATIVE / CORE
    if packaged.is_file():
        return packaged
    made = folder / f"core-{_source_hash()}" / CORE
    if not made.is_file():
        compiler = find_compiler()
        if compiler is None:
            raise InputError(
                "This installation has no phantom card, and no compiler to make it.",
                hint="Install a C compiler, or: pip install ziglang.",
            )
        try:
            build(made, compiler)
        except OSError as error:
            raise InputError(
                f"The phantom card cannot be compiled: {error}",
                hint="Name another compiler with the environment variable CC.",
            ) from None
    return made


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(NATIVE.rglob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
