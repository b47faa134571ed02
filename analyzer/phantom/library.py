"""The core of the phantom card: the library that is built into the wheel, or compiled at first use.

A wheel for Linux on x86-64 carries it (``hatch_build.py``). Where it is missing, as in a checkout
that is used in place, it is compiled with the compiler that is found: ``$CC``, ``cc``, ``gcc``,
``clang``, or the package ``ziglang``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from analyzer.errors import InputError

CORE: Final = "libphantom.so"
NATIVE: Final = Path(__file__).parent / "native"
_FLAGS: Final = (
    "-O1",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wl,-Bsymbolic",
    f"-Wl,-soname,{CORE}",
)
_LIBRARIES: Final = ("-lpthread", "-ldl")
_PATIENCE_S: Final = 300
_OLDEST_GLIBC: Final = "x86_64-linux-gnu.2.17"
"""What zig links for, so that a wheel runs wherever TensorFlow's does (manylinux2014)."""


def refuse_elsewhere() -> None:
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
        InputError: there is none, and no compiler.
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
        build(made, compiler)
    return made


def find_compiler() -> list[str] | None:
    """Return the start of a compiler's command line; None where there is no compiler."""
    named = os.environ.get("CC", "")
    if named and shutil.which(shlex.split(named)[0]):
        return shlex.split(named)
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", _OLDEST_GLIBC]
    return None


def build(target: Path, compiler: list[str], source: Path = NATIVE) -> None:
    """Compile the core, whole or not at all.

    Raises:
        InputError: the compiler refuses.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    files = [str(path) for path in sorted(source.glob("*.c"))]
    with tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent) as folder:
        result = Path(folder) / target.name
        command = [*compiler, *_FLAGS, "-o", str(result), *files, *_LIBRARIES]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
        if ended.returncode or not result.is_file():
            word = (ended.stderr.strip().splitlines() or ["no word"])[0]
            raise InputError(
                f"The phantom card cannot be compiled with {compiler[0]}: {word}",
                hint="Name another compiler: CC=... .",
            )
        result.replace(target)


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(NATIVE.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
