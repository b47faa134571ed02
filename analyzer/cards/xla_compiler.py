"""XLA's compiler for NVIDIA cards: its installation, its flags, and its description of a card."""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from analyzer.cards.catalogue import Gpu
from analyzer.model.errors import CompilerUnavailable

EXTRA: Final = "pip install 'tf-memory-analyzer[xla-gpu]'"
_PLUGIN: Final = ("jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so")
_CUDA: Final = ("nvidia-cuda-nvcc-cu12", "nvidia/cuda_nvcc")

CUDNN_VERSION: Final = (9, 10, 0)
"""XLA checks cuDNN's version before it uses some fusions. This is the version of TensorFlow 2.21's
wheels for CUDA (``tensorflow[and-cuda]``: nvidia-cudnn-cu12 9.x)."""

_BLOCK_THREADS: Final = 1024  # at most; these limits are those of all cards
_BLOCK_SHARED_BYTES: Final = 48 << 10  # without opting in to more
_SM_REGISTERS: Final = 64 << 10  # 32-bit registers of one multiprocessor, and of one block
_GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)

_OWN_FLAGS: Final = ("xla_dump_", "xla_gpu_cuda_data_dir", "xla_hlo_profile")
"""Flags for output folders and for the place of CUDA; the compiler's process sets its own."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """An installed compiler: the PJRT plug-in, and the folder with ``bin/ptxas`` and libdevice.

    ``version`` is such as ``jax-cuda12-pjrt 0.9.0``; plans depend on it.
    """

    library: Path
    cuda: Path
    version: str


def find_compiler() -> Compiler:
    """Return the compiler of the extra ``xla-gpu``; its wheels are not imported.

    Raises:
        CompilerUnavailable: the extra is not installed, or does not support this machine.
    """
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
    try:
        wheel = distribution(package)
    except PackageNotFoundError:
        if sys.platform != "linux":
            raise CompilerUnavailable(
                f"XLA's compiler for NVIDIA cards supports Linux only, not {sys.platform}."
            ) from None
        raise CompilerUnavailable(
            f"XLA's compiler for NVIDIA cards is not installed ({package} is missing).",
            hint=f"{EXTRA}.",
        ) from None
    place = Path(str(wheel.locate_file(path)))
    if not place.exists():
        raise CompilerUnavailable(
            f"{package} {wheel.version} is installed without {path}.",
            hint=f"{EXTRA} --force-reinstall.",
        )
    return place, wheel.version


def read_flags(text: str) -> str:
    """Return the value of ``XLA_FLAGS`` as flags; without a leading dash it names a file of flags."""
    text = text.strip()
    if text and not text.startswith("-"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return " ".join(Path(text).read_text("utf-8").split())
        return ""  # XLA ignores a missing file
    return text


def path_flag(flag: str, path: Path) -> str:
    """Return a flag with a path, quoted if XLA would split it at white space."""
    text = str(path)
    if not any(mark.isspace() or mark in "\"'\\" for mark in text):
        return f"{flag}={text}"
    return f'{flag}="' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def compiler_flags(text: str) -> tuple[str, ...]:
    """Return the flags of ``XLA_FLAGS`` that a card's compiler takes over, in order."""
    try:
        flags = shlex.split(read_flags(text))
    except ValueError:
        flags = read_flags(text).split()
    return tuple(
        flag
        for flag in flags
        if flag.startswith("-") and not flag.lstrip("-").startswith(_OWN_FLAGS)
    )


def target_text(gpu: Gpu, *, cudnn: tuple[int, int, int] = CUDNN_VERSION) -> str:
    """Return XLA's description of a card, a ``GpuTargetConfigProto`` in text form.

    With it XLA compiles for the card on a machine without one. Field names are from
    ``xla/stream_executor/device_description.proto``.
    """
    chip = gpu.architecture
    major, minor = gpu.compute_capability
    extension = "ACCELERATED_FEATURES" if chip.accelerated else "NONE"
    axes = zip("xyz", _GRID_LIMITS, strict=True)
    info = [
        f"threads_per_block_limit: {_BLOCK_THREADS}",
        "threads_per_warp: 32",
        f"shared_memory_per_block: {_BLOCK_SHARED_BYTES}",
        f"shared_memory_per_core: {chip.shared_bytes}",
        f"threads_per_core_limit: {chip.max_threads}",
        f"core_count: {gpu.sm_count}",
        f"fpus_per_core: {chip.fp32_lanes}",
        *(f"block_dim_limit_{axis}: {limit}" for axis, limit in axes),
        f"memory_bandwidth: {gpu.bandwidth_bytes_s}",
        f"l2_cache_size: {gpu.l2_bytes}",
        f"clock_rate_ghz: {gpu.clock_mhz / 1000:g}",
        f"device_memory_size: {gpu.memory_bytes}",
        f"shared_memory_per_block_optin: {chip.block_optin_bytes}",
        f"cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}",
        f"registers_per_core_limit: {_SM_REGISTERS}",
        f"registers_per_block_limit: {_SM_REGISTERS}",
    ]
    body = "\n".join(f"  {line}" for line in info)
    return (
        f"gpu_device_info {{\n{body}\n}}\n"
        'platform_name: "CUDA"\n'
        f"dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} patch: {cudnn[2]} }}\n"
        f'device_description_str: "{gpu.name}"\n'
    )
