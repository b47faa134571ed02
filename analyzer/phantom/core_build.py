"""Compiling the core of the phantom card. Needs nothing but Python: the wheel's build uses it too."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

CORE: Final = "libphantom.so"
NATIVE: Final = Path(__file__).parent / "native"
_FLAGS: Final = (
    *("-O1", "-s", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wl,-Bsymbolic", f"-Wl,-soname,{CORE}"),
)
_LIBRARIES: Final = ("-lpthread", "-ldl")
_PATIENCE_S: Final = 300  # seconds for one run of the compiler
_OLDEST_GLIBC: Final = "x86_64-linux-gnu.2.17"
"""What zig links for, so that a wheel runs wherever TensorFlow's does (manylinux2014)."""


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

    Args:
        target: The library to make.
        compiler: The start of the compiler's command line.
        source: The folder of the C files, in folders of their own.

    Raises:
        OSError: the compiler refuses, with its first words.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    files = [str(path) for path in sorted(source.rglob("*.c"))]
    with tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent) as folder:
        result = Path(folder) / target.name
        command = [*compiler, *_FLAGS, "-o", str(result), *files, *_LIBRARIES]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
        if ended.returncode or not result.is_file():
            word = (ended.stderr.strip().splitlines() or ["no word"])[0]
            raise OSError(f"{compiler[0]}: {word}")
        result.replace(target)
