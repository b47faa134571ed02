"""The mark of tests that run steps on simulated cards."""

from importlib.metadata import version

import pytest

from analyzer.model.errors import InputError
from analyzer.simulated_card.card_environment import check_platform
from analyzer.simulated_card.core_build import CORE, NATIVE, find_compiler

_TENSORFLOW = tuple(map(int, version("tensorflow").split(".")[:2]))


def _has_simulated_card() -> bool:
    """Return whether one can be made; the first test that needs it makes it."""
    try:
        check_platform()
    except InputError:
        return False

    has_core = (NATIVE / CORE).is_file() or find_compiler() is not None
    return has_core and _TENSORFLOW >= (2, 18)


NEEDS_NCCL_BY_NAME = pytest.mark.skipif(
    _TENSORFLOW < (2, 21),
    reason="NCCL is built in",
)
NEEDS_CARDS = pytest.mark.skipif(
    not _has_simulated_card(),
    reason="needs Linux on x86-64, a compiler and TensorFlow 2.18 or newer",
)
