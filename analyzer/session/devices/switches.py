"""What decides how much TensorFlow takes of a card: variables as they are set, and what each does.

What is said of TensorFlow's own was read in its source: ``gpu_device.cc`` (``MinSystemMemory``,
``SingleVirtualDeviceMemoryLimit``), ``gpu_bfc_allocator.cc``, ``gpu_process_state.cc``,
``process_state.cc``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

_LONGEST: Final = 200

_TENSORFLOW: Final[Mapping[str, Mapping[str, str]]] = {
    "TF_FORCE_GPU_ALLOW_GROWTH": {
        "true": "the pool starts small and grows on demand, whatever the program sets",
        "false": "the pool takes its whole limit at the first tensor, whatever the program sets",
        "": "neither true nor false: TensorFlow logs an error and does as the program says",
    },
    "TF_GPU_ALLOCATOR": {
        "cuda_malloc_async": "the driver keeps the pool: no BFC allocator, fewer statistics; "
        "freed blocks may go back to the card",
        "cuda_malloc": "every request goes to cudaMalloc: for debugging, slow",
        "memory_guard": "each chunk has guards on both sides: for debugging, more bytes and slow",
        "": "not a value that TensorFlow knows: the BFC allocator is used",
    },
    "CUDA_VISIBLE_DEVICES": {
        "-1": "CUDA sees no card: TensorFlow runs on the CPU",
        "": "only these cards are seen, numbered anew from 0",
    },
    "CUDA_DEVICE_ORDER": {
        "PCI_BUS_ID": "cards are numbered as nvidia-smi numbers them",
        "FASTEST_FIRST": "the fastest card is number 0: not nvidia-smi's order",
        "": "how cards are numbered",
    },
    "NVIDIA_VISIBLE_DEVICES": {"": "which cards the container was given"},
    "CUDA_MODULE_LOADING": {
        "LAZY": "a CUDA kernel is loaded when it is first launched: less of the card outside the pool",
        "EAGER": "all CUDA kernels are loaded at the start: several hundred MiB outside the pool",
        "": "when CUDA kernels are loaded",
    },
    "TF_DEVICE_MIN_SYS_MEMORY_IN_MB": {
        "": "MiB of each card left out of the pool's limit, in place of TensorFlow's reserve"
    },
    "TF_GPU_HOST_MEM_LIMIT_IN_MB": {
        "": "limit of the pinned host memory for copies, MiB; 65,536 where it is not set"
    },
    "TF_FORCE_UNIFIED_MEMORY": {
        "": "unified memory: a pool larger than the card is paged to the host's memory, slowly"
    },
    "TF_ENABLE_GPU_GARBAGE_COLLECTION": {
        "false": "regions without a chunk in use are not given back before a request fails",
        "": "before a request fails, regions of a growing pool without a chunk in use are given back",
    },
    "TF_CUDNN_WORKSPACE_LIMIT_IN_MB": {
        "": "the most that a convolution may ask for as workspace, MiB"
    },
    "TF_CUBLAS_WORKSPACE_LIMIT_IN_MB": {
        "": "the most that a product may ask for as workspace, MiB"
    },
    "TF_CUFFT_WORKSPACE_LIMIT_IN_MB": {
        "": "the most that a transform may ask for as workspace, MiB"
    },
    "TF_GPU_THREAD_MODE": {"": "which threads launch kernels; no bytes of the card"},
    "TF_CPU_ALLOCATOR_USE_BFC": {
        "": "host tensors from a pool of the same kind as a GPU's: what traces need"
    },
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": {"": "limit of that host pool, MiB"},
    "TF_XLA_FLAGS": {"": "what TensorFlow hands to XLA; --tf_xla_auto_jit compiles what can be"},
    "XLA_FLAGS": {"": "XLA's own flags"},
}
_OF_JAX: Final = ("XLA_PYTHON_CLIENT_", "XLA_CLIENT_MEM_FRACTION", "JAX_")
_JAX_ALONE: Final = "JAX reads it, TensorFlow does not: no byte of TensorFlow's pool"

_SETTINGS: Final[Mapping[str, str]] = {
    "allow_growth": "set in the program: the pool grows on demand",
    "per_process_gpu_memory_fraction": "limit: this share of the card; above 1, unified memory",
    "experimental": "set in the program: virtual devices with their own limits, the async allocator",
}


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is set.

    Attributes:
        name: The variable, or the field of TensorFlow's ``GPUOptions``.
        value: Its text, cut where it is long; untrusted.
        does: What it does with this value.
    """

    name: str
    value: str
    does: str


def switches_of(
    environment: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> tuple[Switch, ...]:
    """Return what is set, TensorFlow's own first.

    Args:
        environment: The process' environment variables.
        settings: What the program set in TensorFlow, by the field of ``GPUOptions``.
    """
    return (*_set_in_program(settings or {}), *_set_outside(environment))


def _set_in_program(settings: Mapping[str, str]) -> Iterator[Switch]:
    for name, value in settings.items():
        if value and (does := _SETTINGS.get(name)):
            yield Switch(name=name, value=value[:_LONGEST], does=does)


def _set_outside(environment: Mapping[str, str]) -> Iterator[Switch]:
    for name, effects in _TENSORFLOW.items():
        if (value := environment.get(name)) is not None:
            does = effects.get(value.strip(), effects[""])
            if name == "CUDA_VISIBLE_DEVICES" and not value.strip():
                does = effects["-1"]
            yield Switch(name=name, value=value[:_LONGEST], does=does)
    for name in sorted(environment):
        if name.startswith(_OF_JAX):
            yield Switch(name=name, value=environment[name][:_LONGEST], does=_JAX_ALONE)
