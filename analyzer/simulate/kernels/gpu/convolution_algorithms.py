"""cuDNN's algorithms for a convolution: their workspace, time, and chance to be chosen.

TensorFlow times each algorithm at the first call of a shape and keeps the fastest
(``BestCudnnConvAlgorithm`` in ``gpu_utils.cc``). ``cudnn_algorithms.toml`` has a closed form of each
workspace and a model of each time, calibrated on public traces. Timing errors and model errors make
the choice uncertain, so each algorithm gets a probability.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from types import CodeType
from typing import Any, Final

import msgspec

from analyzer.cards import Gpu
from analyzer.model.tables import read_table

CUDNN_MAJOR: Final = 9  # cuDNN's major version in TensorFlow 2.21's wheel (9.3)

PASSES: Final = ("forward", "input_gradient", "filter_gradient")


class Convolution(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes of one call of cuDNN."""

    direction: str  # one of ``PASSES``
    image: tuple[int, ...]  # batch, channels and axes of the convolved tensor
    kernel: tuple[int, ...]  # filters and axes of the filter
    result: tuple[int, ...]  # axes of the forward output
    groups: int = 1  # the largest of each over the axes
    stride: int = 1
    dilation: int = 1
    dtype: str = "float32"
    channels_last: bool = False  # order of the axes in cuDNN's tensors
    cudnn: int = CUDNN_MAJOR  # cuDNN's major version

    def names(self) -> dict[str, float]:
        """Return the values of the names in the table's expressions."""
        depth = (1,) * (5 - len(self.image))
        image, kernel = (*self.image[:2], *depth, *self.image[2:]), (*depth, *self.kernel[1:])
        axes = (*image, self.kernel[0], *kernel, *depth, *self.result)
        return {
            **dict(zip("NCDHWKTRSOPQ", axes, strict=True)),
            **{name: int(name == self.direction) for name in PASSES},
            "groups": self.groups,
            "stride": self.stride,
            "dilation": self.dilation,
            "deep": int(len(self.image) > 4),
            "last": int(self.channels_last),
            "single": int(self.dtype == "float32"),
            "half": int(self.dtype == "float16"),
            "bfloat16": int(self.dtype == "bfloat16"),
            "b": {"float64": 8, "float32": 4}.get(self.dtype, 2),
            "cudnn": self.cudnn,
        }


class Candidate(msgspec.Struct, frozen=True):
    """One algorithm for a convolution: workspace, expected time, and chance to be chosen.

    ``variants`` are workspaces of other kernels of the same algorithm.
    """

    name: str
    bytes: int
    variants: tuple[int, ...]
    microseconds: float
    probability: float


class Algorithm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table. Texts are expressions."""

    name: str
    offered: str
    bytes: str
    variants: tuple[str, ...] = ()
    share: str = ""  # frequency of the choice, for algorithms without a model of the time
    # pass -> share of the card's speed. Absent passes lack the algorithm.
    efficiency: Mapping[str, float] = {}
    # compute capability -> factor of the efficiency; the last is for any other
    architectures: Mapping[str, float] = {}
    launch: float = 0.0  # microseconds for the launches of its kernels
    product: Mapping[str, str] = {}  # dimensions of its matrix products in place of ``names``

    def efficiency_of(self, direction: str, capability: str) -> float:
        """Return the share of a card's speed that it reaches in a pass; 0 if it lacks the pass."""
        if self.share:
            return 1.0
        factor = self.architectures.get(capability, [*self.architectures.values()][-1])
        return self.efficiency.get(direction, 0.0) * factor


class AlgorithmTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table; ``spread`` and ``cards`` are explained in the file."""

    spread: Mapping[str, float]
    cards: tuple[str, ...]
    names: Mapping[str, str]
    algorithm: tuple[Algorithm, ...]
    after: Mapping[str, str]


@lru_cache(maxsize=1)
def algorithm_table() -> AlgorithmTable:
    """Return the table in the package."""
    return read_table("simulate/kernels/gpu/cudnn_algorithms.toml", AlgorithmTable)


def card_names(gpu: Gpu) -> dict[str, float]:
    """Return a card's values: float32 operations and bytes in a microsecond, and others."""
    lanes = gpu.sm_count * gpu.architecture.fp32_lanes
    major, minor = gpu.compute_capability
    return {
        "capability": 10 * major + minor,
        "sms": gpu.sm_count,
        "flops": 2 * lanes * gpu.clock_mhz,
        "bandwidth": gpu.bandwidth_bytes_s / 1e6,
    }


@lru_cache(maxsize=4096)
def find_candidates(call: Convolution, gpu: Gpu, limit_bytes: int) -> tuple[Candidate, ...]:
    """Return the algorithms that TensorFlow tries, in order, within its limit of a workspace.

    The logarithms of the times have errors with a Gumbel distribution of the table's spread, so that
    the probabilities to be measured as the fastest are those of a multinomial logit.
    """
    table = algorithm_table()
    names = _find_names(call, gpu)
    found: list[tuple[str, int, tuple[int, ...], float]] = []
    for one in table.algorithm:
        efficiency = one.efficiency_of(call.direction, gpu.capability_text)
        if not efficiency or not _evaluate(one.offered, names):
            continue
        size_bytes = int(_evaluate(one.bytes, names)) + (0 if one.share else names["copies"])
        if size_bytes > limit_bytes:
            continue
        variants = tuple(int(_evaluate(text, names)) for text in one.variants)
        own = names | {"bytes": size_bytes, "efficiency": efficiency, "launch": one.launch}
        own = _evaluate_all(table.after, _evaluate_all(one.product, own))
        time = 1 / _evaluate(one.share, names) if one.share else own["microseconds"]
        found.append((one.name, size_bytes, variants, time))
    spread = 1.0
    shortest = min((time for *_, time in found), default=1.0)
    if names["cuda_cores"] and not names["tensor_cores"]:
        known = {name for one in table.algorithm for name in one.architectures}
        kind = "architecture" if gpu.capability_text in known else "other"
        spread = table.spread["measured" if gpu.id in table.cards else kind]
        spread += table.spread["microseconds"] / shortest  # the timer's own error
    weights = [(shortest / time) ** (1 / spread) for *_, time in found]
    return tuple(
        Candidate(*one, weight / sum(weights)) for one, weight in zip(found, weights, strict=True)
    )


def is_measured(call: Convolution, gpu: Gpu) -> bool:
    """Return whether a measurement of this kind of convolution is published."""
    return bool(_find_names(call, gpu)["measured"])


@lru_cache(maxsize=4096)
def _find_names(call: Convolution, gpu: Gpu) -> dict[str, Any]:
    """Return the values of all names that do not depend on the algorithm."""
    return _evaluate_all(algorithm_table().names, call.names() | card_names(gpu))


def _evaluate_all(texts: Mapping[str, str], scope: dict[str, Any]) -> dict[str, Any]:
    """Return the scope with the values of these names, each of which may use those before it."""
    scope = dict(scope)
    for name, text in texts.items():
        scope[name] = _evaluate(text, scope)
    return scope


def _evaluate(text: str, scope: Mapping[str, Any]) -> Any:
    """Return the value of an expression of the package's own table."""
    return eval(_compile(text), _FUNCTIONS, scope)


@cache
def _compile(text: str) -> CodeType:
    return compile(text, "cudnn_algorithms.toml", "eval")


_FUNCTIONS: Final[dict[str, Any]] = {
    "__builtins__": {},
    "max": max,
    "min": min,
    "pad": lambda size, multiple: -(-size // multiple) * multiple,
    "up": lambda size, divisor: -(-size // divisor),
    "power2": lambda size: 1 << max(int(size) - 1, 0).bit_length(),
}
