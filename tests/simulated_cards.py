"""The mark of tests that run steps on simulated cards."""

from importlib.metadata import version

import pytest

from analyzer.model.errors import InputError
from analyzer.simulated_card.card_environment import check_simulated_card


def _has_simulated_card() -> bool:
    try:
        check_simulated_card()
    except (InputError, OSError):
        return False

    return True


NEEDS_NCCL_BY_NAME = pytest.mark.skipif(
    tuple(map(int, version("tensorflow").split(".")[:2])) < (2, 21),
    reason="NCCL is built in",
)
NEEDS_CARDS = pytest.mark.skipif(
    not _has_simulated_card(),
    reason="needs Linux on x86-64, a compiler and TensorFlow 2.18 or newer",
)
