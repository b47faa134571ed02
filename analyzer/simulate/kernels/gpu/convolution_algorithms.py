"""The algorithms that cuDNN offers for a convolution, each with its modelled time.

TensorFlow times each algorithm at the first call of a shape and keeps the fastest
(``BestCudnnConvAlgorithm`` in ``gpu_utils.cc``). ``cudnn_algorithms`` has a model of each time.
"""

from functools import lru_cache

import msgspec

from analyzer.cards import Gpu
from analyzer.simulate.kernels.gpu.convolution_on_card import (
    Convolution,
    ConvolutionOnCard,
)
from analyzer.simulate.kernels.gpu.cudnn_algorithms import ALGORITHMS


class Candidate(msgspec.Struct, frozen=True):
    """One algorithm for a convolution: its workspace and its expected time."""

    name: str
    bytes: int
    microseconds: float


@lru_cache(maxsize=4096)
def find_candidates(
    call: Convolution, gpu: Gpu, limit_bytes: int
) -> tuple[Candidate, ...]:
    """Return the algorithms that TensorFlow tries, in order, within its limit of a workspace."""
    on = ConvolutionOnCard(call, gpu)
    candidates = []

    for name, algorithm in ALGORITHMS.items():
        offer = algorithm(on)
        if offer is not None and offer.bytes <= limit_bytes:
            candidates.append(Candidate(name, offer.bytes, offer.microseconds))

    return tuple(candidates)
