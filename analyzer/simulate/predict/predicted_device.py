"""The device of a noted step: its kernels and its allocator."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.cards import Gpu, find_gpu, memory_limit
from analyzer.simulate.allocator import BfcOptions
from analyzer.simulate.kernels.gpu.cudnn_convolution import LIMIT_VARIABLE
from analyzer.simulate.kernels.gpu.gpu_kernels import gpu_device
from analyzer.simulate.kernels.kernel_device import KernelDevice, cpu_device
from analyzer.simulate.predict.measured_workspaces import with_measured_workspaces
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
        return Target(device=cpu_device(note.threads), options=BfcOptions.cpu())
    gpu = find_gpu(device.id or device.name)
    return Target(
        device=with_measured_workspaces(gpu_device(gpu, _read_workspace_limit(note)), note),
        options=BfcOptions.gpu(memory_limit(gpu).bytes),
        gpu=gpu,
    )


def _read_workspace_limit(note: RunNote) -> int | None:
    """Return the limit of a cuDNN workspace that the noted process set, in bytes; None for none."""
    text = note.environment.get(LIMIT_VARIABLE, "").strip()
    return int(text) << 20 if text.isdecimal() else None
