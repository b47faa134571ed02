"""Workspaces of convolutions, asked from cuDNN's own library without TensorFlow.

``cudnnFind...Algorithm`` runs each candidate once and returns its workspace and time;
``cudnnGet...Algorithm_v7`` returns the same workspaces without running. Both exist in cuDNN 7 to 9.

Figures: "252 convolutions on the H200" in docs/accuracy.md.
"""

from __future__ import annotations

import ctypes
import itertools
import site
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from card_record import Candidate, ConvolutionRow

NAMES: Final = ("libcudnn.so.9", "libcudnn.so.8", "libcudnn.so.7", "libcudnn.so")
FORMATS: Final = {"NCHW": 0, "NHWC": 1}
DTYPES: Final = {"float32": 0, "float16": 2, "bfloat16": 9}
_FLOAT: Final = 0
_CROSS_CORRELATION: Final = 1
_TENSOR_OP, _FMA = 1, 3  # cudnnMathType_t: tensor cores; no rounding to TF32
_MOST_CANDIDATES: Final = 16

KINDS: Final = {
    "forward": "Forward",
    "input": "BackwardData",
    "filter": "BackwardFilter",
}
"""Name of each result in cuDNN's functions."""


class CudnnError(Exception):
    """cuDNN is not installed, lacks a function, or refuses a call."""


class _Performance(ctypes.Structure):
    """``cudnnConvolutionFwdAlgoPerf_t``; those of the gradients have the same fields."""

    _fields_ = (
        ("algorithm", c_int),
        ("status", c_int),
        ("time_ms", c_float),
        ("memory", c_size_t),
        ("determinism", c_int),
        ("math", c_int),
        ("reserved", c_int * 3),
    )


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of the sweep; fields as in ``ConvolutionRow``."""

    shape: tuple[int, ...]
    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        batch, _, *sides = self.shape
        reach = 2 * self.padding - self.kernel
        return (
            batch,
            self.filters,
            *((side + reach) // self.stride + 1 for side in sides),
        )


def list_convolutions(
    batches: tuple[int, ...] = (1, 8, 32, 128),
) -> Iterator[Convolution]:
    """Yield convolutions of common networks at several batch sizes."""
    for batch in batches:
        for side, channels, filters, kernel, stride in (
            (224, 3, 64, 7, 2),
            (224, 3, 64, 3, 1),
            (112, 64, 128, 3, 1),
            (56, 64, 64, 1, 1),
            (56, 64, 64, 3, 1),
            (56, 64, 256, 1, 1),
            (56, 128, 128, 3, 2),
            (28, 128, 128, 3, 1),
            (28, 256, 512, 1, 2),
            (14, 256, 256, 3, 1),
            (14, 1024, 256, 1, 1),
            (7, 512, 512, 3, 1),
            (30, 96, 256, 5, 1),
            (14, 256, 384, 3, 1),
            (14, 384, 384, 3, 1),
        ):
            yield Convolution(
                shape=(batch, channels, side, side), filters=filters, kernel=kernel, stride=stride,
                padding=kernel // 2,
            )  # fmt: skip
        for side, channels, groups in ((56, 144, 144), (28, 240, 240), (28, 256, 32)):
            yield Convolution(
                shape=(batch, channels, side, side), filters=channels, kernel=3, padding=1,
                groups=groups,
            )  # fmt: skip
        for side, channels in ((32, 16), (16, 32)):
            yield Convolution(
                shape=(batch, channels, side, side, side),
                filters=channels,
                kernel=3,
                padding=1,
            )


def load_library() -> ctypes.CDLL:
    """Return cuDNN, from the system or from NVIDIA's Python package.

    Raises:
        CudnnError: it is not installed.
    """
    folders = [Path(one) / "nvidia" / "cudnn" / "lib" for one in site.getsitepackages()]
    for name in (*NAMES, *(str(folder / name) for folder in folders for name in NAMES)):
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise CudnnError("cuDNN is not installed (libcudnn.so.7 to .9)")


class Cudnn:
    """A handle of cuDNN.

    Args:
        library: The loaded library.
        runs: Whether to run the candidates, which gives times.
    """

    def __init__(self, library: ctypes.CDLL, *, runs: bool = True) -> None:
        self._library = library
        self._prefix, self._suffix = ("Find", "") if runs else ("Get", "_v7")
        self._handle = self._make("cudnnCreate")
        version = self._function("cudnnGetVersion")
        version.restype = c_size_t
        self.version = int(version())

    def ask(
        self, kind: str, one: Convolution, dtype: str, layout: str, *, tf32: bool
    ) -> ConvolutionRow:
        """Return the candidates of a convolution."""
        row = ConvolutionRow(
            kind=kind, shape=one.shape, filters=one.filters, kernel=one.kernel, stride=one.stride,
            padding=one.padding, groups=one.groups, dtype=dtype, layout=layout, allows_tf32=tf32,
        )  # fmt: skip
        made: list[tuple[str, c_void_p]] = []
        try:
            values = self._tensor(one.shape, dtype, layout, made)
            result = self._tensor(one.result, dtype, layout, made)
            weights = self._filter(one, dtype, layout, made)
            convolution = self._convolution(one, dtype, made, tf32=tf32)
            operands = {
                "forward": (values, weights, convolution, result),
                "input": (weights, result, convolution, values),
                "filter": (values, result, convolution, weights),
            }[kind]
            found = self._candidates(kind, operands)
            return _with_candidates(
                row, found, "" if found else "cuDNN offers no algorithm"
            )
        except CudnnError as error:
            return _with_candidates(row, (), str(error))
        finally:
            for destroy, thing in made:
                self._function(destroy)(thing)

    def _candidates(
        self, kind: str, operands: tuple[c_void_p, ...]
    ) -> tuple[Candidate, ...]:
        found = (_Performance * _MOST_CANDIDATES)()
        count = c_int(0)
        name = f"cudnn{self._prefix}Convolution{KINDS[kind]}Algorithm{self._suffix}"
        self._call(
            name, self._handle, *operands, c_int(_MOST_CANDIDATES), byref(count), found
        )
        return tuple(
            Candidate(
                algorithm=one.algorithm,
                workspace_bytes=one.memory,
                time_us=max(one.time_ms, 0.0) * 1000,
                math=one.math,
            )
            for one in found[: count.value]
            if one.status == 0
        )

    def _tensor(
        self,
        shape: tuple[int, ...],
        dtype: str,
        layout: str,
        made: list[tuple[str, c_void_p]],
    ) -> c_void_p:
        thing = self._make("cudnnCreateTensorDescriptor")
        made.append(("cudnnDestroyTensorDescriptor", thing))
        axes = (c_int * len(shape))(*shape)
        self._call(
            "cudnnSetTensorNdDescriptorEx",
            thing,
            FORMATS[layout],
            DTYPES[dtype],
            len(shape),
            axes,
        )
        return thing

    def _filter(
        self,
        one: Convolution,
        dtype: str,
        layout: str,
        made: list[tuple[str, c_void_p]],
    ) -> c_void_p:
        thing = self._make("cudnnCreateFilterDescriptor")
        made.append(("cudnnDestroyFilterDescriptor", thing))
        sides = [one.kernel] * (len(one.shape) - 2)
        axes = (c_int * len(one.shape))(one.filters, one.shape[1] // one.groups, *sides)
        self._call(
            "cudnnSetFilterNdDescriptor",
            thing,
            DTYPES[dtype],
            FORMATS[layout],
            len(axes),
            axes,
        )
        return thing

    def _convolution(
        self,
        one: Convolution,
        dtype: str,
        made: list[tuple[str, c_void_p]],
        *,
        tf32: bool,
    ) -> c_void_p:
        thing = self._make("cudnnCreateConvolutionDescriptor")
        made.append(("cudnnDestroyConvolutionDescriptor", thing))
        count = len(one.shape) - 2
        pads, strides, dilations = (
            (c_int * count)(*[value] * count) for value in (one.padding, one.stride, 1)
        )
        self._call(
            "cudnnSetConvolutionNdDescriptor",
            *(thing, count, pads, strides, dilations, _CROSS_CORRELATION, _FLOAT),
        )
        self._call("cudnnSetConvolutionGroupCount", thing, one.groups)
        is_float = dtype == "float32"
        math = _TENSOR_OP if tf32 or not is_float else _FMA
        self._call("cudnnSetConvolutionMathType", thing, math)
        return thing

    def _make(self, name: str) -> c_void_p:
        thing = c_void_p()
        self._call(name, byref(thing))
        return thing

    def _function(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError:
            raise CudnnError(f"this cuDNN has no {name}") from None

    def _call(self, name: str, *arguments: Any) -> None:
        status = int(self._function(name)(*arguments))
        if status:
            text = self._function("cudnnGetErrorString")
            text.restype = c_char_p
            reason = text(c_int(status)) or b"unknown error"
            raise CudnnError(f"{name}: {reason.decode('ascii', 'replace')}")


def _with_candidates(
    row: ConvolutionRow, found: tuple[Candidate, ...], failed: str = ""
) -> ConvolutionRow:
    import msgspec

    return msgspec.structs.replace(row, candidates=found, failed=failed)


def sweep(cudnn: Cudnn, convolutions: list[Convolution]) -> Iterator[ConvolutionRow]:
    """Yield a row for each convolution, result, data type and layout."""
    variants = (
        ("float32", "NCHW", False),
        ("float32", "NCHW", True),
        ("float32", "NHWC", True),
        ("float16", "NCHW", True),
        ("float16", "NHWC", True),
        ("bfloat16", "NHWC", True),
    )
    for one, kind, (dtype, layout, tf32) in itertools.product(
        convolutions, KINDS, variants
    ):
        yield cudnn.ask(kind, one, dtype, layout, tf32=tf32)
