"""The device of a noted step: its kernels and its allocator."""

from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.cards import Gpu, find_gpu, memory_limit
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.kernels.gpu.cudnn_calls import LIMIT_VARIABLE
from analyzer.simulate.kernels.gpu.gpu_kernels import gpu_device
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.tracing.parse.run_folder import RunNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device to predict for."""

    device: KernelDevice
    options: BfcOptions
    gpu: Gpu | None = None


def target_of(note: RunNote) -> Target:
    """Return the device of a note."""
    device = note.device
    if device.kind != "gpu":
        return Target(device=CPU, options=BfcOptions.cpu())

    gpu = find_gpu(device.id or device.name)
    text = note.environment.get(LIMIT_VARIABLE, "").strip()
    limit_bytes = int(text) << 20 if text.isdecimal() else None  # of a cuDNN workspace

    return Target(
        device=gpu_device(gpu, limit_bytes),
        options=BfcOptions.gpu(memory_limit(gpu).bytes),
        gpu=gpu,
    )


def describe_card(note: RunNote) -> Iterator[str]:
    """Yield sentences about the measured figures of an estimate, and missing rules of its card."""
    if note.device.name.startswith("AMD "):
        yield (
            "AMD card: kernels follow TensorFlow's CUDA code. MIOpen's workspaces count 0 bytes. "
            "No run on an AMD card was compared."
        )
