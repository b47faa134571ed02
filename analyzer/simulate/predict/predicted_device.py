"""The device of a noted step: its kernels and its allocator."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from analyzer.cards import Gpu, find_gpu, memory_limit
from analyzer.model.contract.capture_request import LikeNote, MeasuredConvolution
from analyzer.model.contract.graph_note import Op
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.kernels.gpu.convolution_on_card import PASSES
from analyzer.simulate.kernels.gpu.cudnn_calls import LIMIT_VARIABLE
from analyzer.simulate.kernels.gpu.gpu_kernels import OP_TYPES, gpu_device
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.kernels.shared.op_call import Call, MemoryPlan, Workspace
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
        device=with_measured_workspaces(gpu_device(gpu, limit_bytes), note),
        options=BfcOptions.gpu(memory_limit(gpu).bytes),
        gpu=gpu,
    )


CONVOLUTION_KINDS: Final = {
    op_type: name.partition("_")[0] for name in PASSES for op_type in OP_TYPES[name]
}
"""Op type of a convolution -> its kind (``MeasuredConvolution``)."""


def with_measured_workspaces(device: KernelDevice, note: RunNote) -> KernelDevice:
    """Return the device with the workspaces of the note's trace; the same without one."""
    if note.like is None:
        return device

    sizes = find_measured(note.ops, note.like, note.step.batch_size)

    def plan(call: Call) -> MemoryPlan:
        planned, size = device.plan(call), sizes.get(call.op.name)
        if size is None:
            return planned
        return replace(planned, workspace=Workspace(size, size, size))

    return replace(device, plan=plan)


def find_measured(
    ops: tuple[Op, ...], like: LikeNote, batch_size: int | None
) -> dict[str, int]:
    """Return op -> bytes of the workspace that the trace measured for the same convolution.

    Convolutions match by kind and by the axes of the output without the batch, then in order. For
    another batch size the workspace is scaled, since the large algorithms (FFT, Winograd) transform
    each image; cuDNN may choose another algorithm there.
    """
    scale = batch_size / like.batch_size if batch_size and like.batch_size else 1.0
    measured: dict[tuple[object, ...], list[MeasuredConvolution]] = defaultdict(list)

    for one in like.convolutions:
        measured[_key(one.kind, one.shape)].append(one)

    own: dict[tuple[object, ...], list[Op]] = defaultdict(list)
    for op in ops:
        shape = op.outputs[0].shape if op.outputs else None
        if op.type in CONVOLUTION_KINDS and shape is not None:
            own[_key(CONVOLUTION_KINDS[op.type], shape)].append(op)

    sizes: dict[str, int] = {}
    for key, wanted in own.items():
        found = measured.get(key, [])
        known = {one.workspace_bytes for one in found}
        if len(known) == 1:
            sizes.update(
                dict.fromkeys((op.name for op in wanted), int(scale * known.pop()))
            )
        elif len(found) == len(wanted):
            wanted.sort(key=lambda op: _numbers(op.name))
            found.sort(key=lambda one: _numbers(one.op))

            for op, one in zip(wanted, found, strict=True):
                sizes[op.name] = int(scale * one.workspace_bytes)

    return sizes


def _key(kind: str, shape: tuple[int, ...]) -> tuple[object, ...]:
    """Return the key of a convolution; channels may be the first or the last axis."""
    return (kind, *(shape if kind == "filter" else sorted(shape[1:])))


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in name.replace("/", "_").split("_") if part.isdecimal()
    )


def describe_card(note: RunNote) -> Iterator[str]:
    """Yield sentences about the measured figures of an estimate, and missing rules of its card."""
    if note.device.name.startswith("AMD "):
        yield (
            "AMD card: kernels follow TensorFlow's CUDA code. MIOpen's workspaces count 0 bytes. "
            "No run on an AMD card was compared."
        )

    like = note.like
    if like is None:
        return

    if like.memory_limit_bytes is not None:
        limit = format_bytes(like.memory_limit_bytes)
        yield f"Measured in {like.trace}: TensorFlow's limit of {limit}."

    sizes = find_measured(note.ops, like, note.step.batch_size)
    if sizes:
        scaled = ""
        if like.batch_size and note.step.batch_size not in (None, like.batch_size):
            scaled = f", scaled from batch {like.batch_size} to {note.step.batch_size}"

        largest = format_bytes(max(sizes.values()))
        yield (
            f"Measured in {like.trace}: the workspaces of {len(sizes)} convolutions{scaled}, "
            f"up to {largest}."
        )
