"""What a noted step is predicted for: its device's kernels and its allocator's set-up."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.cards import Gpu, find_gpu, memory_limit
from analyzer.simulate.allocator import BfcOptions
from analyzer.simulate.kernels.gpu.gpu_kernels import gpu_device
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.tracing.parse.run_folder import RunNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device to predict for.

    Attributes:
        device: Its kernels.
        options: How its allocator is set up by default.
        gpu: The card; None for the CPU.
    """

    device: KernelDevice
    options: BfcOptions
    gpu: Gpu | None = None


def target_of(note: RunNote) -> Target:
    """Return the device that a note was taken for.

    Raises:
        InputError: the note names a card that the catalogue does not have.
    """
    device = note.device
    if device.kind != "gpu":
        return Target(device=CPU, options=BfcOptions.cpu())
    gpu = find_gpu(device.id or device.name)
    return Target(
        device=gpu_device(gpu.compute_capability, gpu.sm_count),
        options=BfcOptions.gpu(memory_limit(gpu).bytes),
        gpu=gpu,
    )
