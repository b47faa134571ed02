"""Compile the core library of the simulated card. Standard library only: the wheel's build loads it."""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

CORE = "libsimulated_card.so"
NATIVE = Path(__file__).parent / "native"
_FLAGS = (
    *("-O1", "-s", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wl,-Bsymbolic", f"-Wl,-soname,{CORE}"),
)
_LIBRARIES = ("-lpthread", "-ldl", "-lm")
_TIMEOUT_S = 300  # for one run of the compiler

# zig's target: a wheel linked for it runs wherever TensorFlow's does (manylinux2014).
_OLDEST_GLIBC = "x86_64-linux-gnu.2.17"


def find_compiler() -> list[str] | None:
    """Return the start of a C compiler's command line, or None: $CC, cc, gcc, clang, then ziglang."""
    chosen = os.environ.get("CC", "")
    if chosen and shutil.which(shlex.split(chosen)[0]):
        return shlex.split(chosen)

    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]

    return find_zig()


def find_zig() -> list[str] | None:
    """Return the start of zig's command line; None if the package ``ziglang`` is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        return None

    return [sys.executable, "-m", "ziglang", "cc", "-target", _OLDEST_GLIBC]


def build(target: Path, compiler: list[str], source: Path = NATIVE) -> None:
    """Compile all C files below ``source`` into ``target``, or raise an OSError with the reason."""
    target.parent.mkdir(parents=True, exist_ok=True)
    files = [str(path) for path in sorted(source.rglob("*.c"))]

    with TemporaryDirectory(prefix=".building-", dir=target.parent) as folder:
        result = Path(folder) / target.name
        process = subprocess.run(
            [*compiler, *_FLAGS, "-o", str(result), *files, *_LIBRARIES],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if process.returncode or not result.is_file():
            reason = (process.stderr.strip().splitlines() or ["no error message"])[0]
            raise OSError(f"{compiler[0]}: {reason}")

        result.replace(target)
