"""XLA's compiler for NVIDIA cards: its installation, its flags, and its description of a card."""

import contextlib
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Final

from analyzer.cards.catalogue import Gpu
from analyzer.model.errors import CompilerUnavailable
from analyzer.model.xla_flags import read_flags

EXTRA: Final = "pip install 'tf-memory-analyzer[xla-gpu]'"
_PLUGIN: Final = ("jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so")
_CUDA: Final = ("nvidia-cuda-nvcc-cu12", "nvidia/cuda_nvcc")

CUDNN_VERSION: Final = (9, 10, 0)
"""XLA checks cuDNN's version before it uses some fusions. This is the version of TensorFlow 2.21's
wheels for CUDA (``tensorflow[and-cuda]``: nvidia-cudnn-cu12 9.x)."""

_OWN_FLAGS: Final = ("xla_dump_", "xla_gpu_cuda_data_dir", "xla_hlo_profile")
"""Flags for output folders and for the place of CUDA; the compiler's process sets its own."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A PJRT plug-in, the folder with ``bin/ptxas``, and a version, on which plans depend."""

    library: Path
    cuda: Path
    version: str


def find_compiler() -> Compiler:
    """Return the compiler of the extra ``xla-gpu``, not imported, or raise CompilerUnavailable."""
    library, version = _find_file(*_PLUGIN)
    cuda, _ = _find_file(*_CUDA)
    return Compiler(library, cuda, f"{_PLUGIN[0]} {version}")


def has_compiler() -> bool:
    """Return whether the compiler is installed."""
    try:
        find_compiler()
    except CompilerUnavailable:
        return False
    return True


def _find_file(package: str, path: str) -> tuple[Path, str]:
    """Return a file of an installed package, and the package's version."""
    with contextlib.suppress(PackageNotFoundError):
        wheel = distribution(package)
        place = Path(str(wheel.locate_file(path)))
        if place.exists():
            return place, wheel.version
    reason, hint = f"is not installed ({package} is missing or incomplete)", f"{EXTRA}."
    if sys.platform != "linux":
        reason, hint = f"supports Linux only, not {sys.platform}", ""
    raise CompilerUnavailable(f"XLA's compiler for NVIDIA cards {reason}.", hint=hint)


def compiler_flags(text: str) -> tuple[str, ...]:
    """Return the flags of ``XLA_FLAGS`` that a card's compiler takes over, in order."""
    text = read_flags(text)
    try:
        flags = shlex.split(text)
    except ValueError:
        flags = text.split()
    named = (flag for flag in flags if flag.startswith("-"))
    return tuple(flag for flag in named if not flag.lstrip("-").startswith(_OWN_FLAGS))


def target_text(gpu: Gpu) -> str:
    """Return XLA's description of a card, a ``GpuTargetConfigProto`` in text form.

    With it XLA compiles for the card on a machine without one. Field names are from
    ``xla/stream_executor/device_description.proto``. All cards have 48 KiB of shared memory for a block
    that does not opt in to more, and 65,536 registers for a multiprocessor and for a block.
    """
    extension = "ACCELERATED_FEATURES" if gpu.architecture.accelerated else "NONE"
    text = (files("analyzer.cards") / "gpu_target.txt").read_text(encoding="utf-8")
    values = {"gpu": gpu, "chip": gpu.architecture, "clock_ghz": gpu.clock_mhz / 1000}
    return text.format(**values, extension=extension, cudnn=CUDNN_VERSION)
