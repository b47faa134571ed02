"""Where the compiler is: the wheels of the extra ``xla-gpu``, found without importing them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from analyzer.model.errors import CompilerUnavailable

EXTRA: Final = "pip install 'tf-memory-analyzer[xla-gpu]'"

_PLUGIN: Final = ("jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so")
_CUDA: Final = ("nvidia-cuda-nvcc-cu12", "nvidia/cuda_nvcc")


@dataclass(frozen=True, slots=True)
class Compiler:
    """An installed compiler.

    Attributes:
        library: The PJRT plug-in.
        cuda: The folder that holds ``bin/ptxas`` and ``nvvm/libdevice``.
        version: ``jax-cuda12-pjrt 0.9.0``: which plan comes out depends on it.
    """

    library: Path
    cuda: Path
    version: str


def find_compiler() -> Compiler:
    """Return the installed compiler.

    Raises:
        CompilerUnavailable: the extra is not installed, or has nothing for this machine.
    """
    library, version = _installed(*_PLUGIN)
    cuda, _ = _installed(*_CUDA)
    return Compiler(library, cuda, f"{_PLUGIN[0]} {version}")


def has_compiler() -> bool:
    """Say whether the compiler is installed."""
    try:
        find_compiler()
    except CompilerUnavailable:
        return False
    return True


def _installed(package: str, path: str) -> tuple[Path, str]:
    try:
        found = distribution(package)
    except PackageNotFoundError:
        if sys.platform != "linux":
            raise CompilerUnavailable(
                f"XLA's compiler for NVIDIA cards exists for Linux only, not for {sys.platform}."
            ) from None
        raise CompilerUnavailable(
            f"XLA's compiler for NVIDIA cards is not installed ({package} is missing).",
            hint=f"{EXTRA}.",
        ) from None
    place = Path(str(found.locate_file(path)))
    if not place.exists():
        raise CompilerUnavailable(
            f"{package} {found.version} is installed without {path}.",
            hint=f"{EXTRA} --force-reinstall.",
        )
    return place, found.version
