"""The algorithms that cuDNN offers for a convolution, each with its chance to be chosen.

TensorFlow times each algorithm at the first call of a shape and keeps the fastest
(``BestCudnnConvAlgorithm`` in ``gpu_utils.cc``). ``cudnn_algorithms`` has a model of each time. Timing
errors and model errors make the choice uncertain, so each algorithm gets a probability.
"""

from functools import lru_cache
from typing import Final

import msgspec

from analyzer.cards import Gpu
from analyzer.simulate.kernels.gpu.convolution_on_card import (
    Convolution,
    ConvolutionOnCard,
)
from analyzer.simulate.kernels.gpu.cudnn_algorithms import (
    ALGORITHMS,
    CALIBRATED_CAPABILITIES,
    CALIBRATED_CARDS,
)

_SPREAD_ON_CALIBRATED_CARD: Final = 0.08
_SPREAD_ON_CALIBRATED_ARCHITECTURE: Final = 0.2
_SPREAD_ELSEWHERE: Final = 0.4
"""Standard deviations of the logarithm of a modelled time."""

_TIMER_MICROSECONDS: Final = 5.5
"""Standard deviation of the timer's own error."""


class Candidate(msgspec.Struct, frozen=True):
    """One algorithm for a convolution: workspace, expected time, and chance to be chosen.

    ``variants`` are workspaces of other kernels of the same algorithm.
    """

    name: str
    bytes: int
    variants: tuple[int, ...]
    microseconds: float
    probability: float


@lru_cache(maxsize=4096)
def find_candidates(
    call: Convolution, gpu: Gpu, limit_bytes: int
) -> tuple[Candidate, ...]:
    """Return the algorithms that TensorFlow tries, in order, within its limit of a workspace.

    The logarithms of the times have errors with a Gumbel distribution, so that the probabilities to be
    measured as the fastest are those of a multinomial logit.
    """
    on = ConvolutionOnCard(call, gpu)
    offers = {}
    for name, algorithm in ALGORITHMS.items():
        offer = algorithm(on)
        if offer is not None and offer.bytes <= limit_bytes:
            offers[name] = offer
    shortest = min((offer.microseconds for offer in offers.values()), default=1.0)
    spread = _find_spread(on, gpu, shortest)
    weights = [
        (shortest / offer.microseconds) ** (1 / spread) for offer in offers.values()
    ]
    return tuple(
        Candidate(
            name, offer.bytes, offer.variants, offer.microseconds, weight / sum(weights)
        )
        for (name, offer), weight in zip(offers.items(), weights, strict=True)
    )


def _find_spread(
    on: ConvolutionOnCard, gpu: Gpu, shortest_microseconds: float
) -> float:
    """Return the spread of the times; 1 if they are the inverse of frequencies."""
    if on.uses_tensor_cores or not on.has_cuda_core_algorithms:
        return 1.0
    spread = _SPREAD_ELSEWHERE
    if gpu.id in CALIBRATED_CARDS:
        spread = _SPREAD_ON_CALIBRATED_CARD
    elif gpu.capability_text in CALIBRATED_CAPABILITIES:
        spread = _SPREAD_ON_CALIBRATED_ARCHITECTURE
    return spread + _TIMER_MICROSECONDS / shortest_microseconds


def is_measured(call: Convolution, gpu: Gpu) -> bool:
    """Return whether a measurement of this kind of convolution is published."""
    return ConvolutionOnCard(call, gpu).is_measured
