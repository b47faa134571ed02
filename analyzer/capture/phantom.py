"""A trace on cards that are not there: what the child's environment and its TensorFlow are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from analyzer.capture.spec import CaptureOptions
from analyzer.compiler.cache import default_cache
from analyzer.contract.run import PhantomNote
from analyzer.errors import InputError
from analyzer.phantom.environment import PhantomOptions, cards_named, phantom_environment

_MIB: Final = 1 << 20
FOLDER: Final = ".phantom"
"""Where the libraries lie in the staging folder where the user keeps no cache."""


def variables(options: CaptureOptions, staging: Path) -> dict[str, str]:
    """Return the environment variables of a child that sees the cards.

    Args:
        options: What the user asked for.
        staging: A folder that is gone when the child has ended.

    Raises:
        InputError: the cards cannot be had on this machine.
    """
    kept = default_cache().folder
    cards = PhantomOptions(gpus=cards_named(options.gpu))
    return phantom_environment(cards, staging / FOLDER if kept is None else kept)


def note(options: CaptureOptions) -> PhantomNote:
    """Return what the run's note says of the cards."""
    return PhantomNote(cards=tuple(gpu.id for gpu in cards_named(options.gpu)))


def set_up(options: CaptureOptions, tf: Any) -> None:
    """Set TensorFlow's limit and growth on each card, before it makes its devices.

    Raises:
        InputError: TensorFlow does not see the cards.
    """
    cards = tf.config.list_physical_devices("GPU")
    if len(cards) != len(cards_named(options.gpu)):
        raise InputError(
            f"This TensorFlow ({tf.__version__}) cannot be given phantom cards.",
            hint="analyze estimate --gpu NAME predicts with any.",
        )
    for card in cards:
        if options.memory_limit_bytes is not None:
            limit = tf.config.LogicalDeviceConfiguration(options.memory_limit_bytes / _MIB)
            tf.config.set_logical_device_configuration(card, [limit])
        if options.growth:
            tf.config.experimental.set_memory_growth(card, True)
