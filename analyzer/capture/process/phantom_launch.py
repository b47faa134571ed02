"""A trace on cards that are not there: what the child's environment and its TensorFlow are told."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from analyzer.cards import check_limit
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.phantom_assumptions import (
    ASSUMPTIONS,
    BATCH_NORM_RESERVE,
    CONTEXT,
    PRODUCT_WORKSPACE,
    RECURRENT_RESERVE,
    WORKSPACE,
)
from analyzer.model.contract.run_note import PhantomNote
from analyzer.model.errors import InputError
from analyzer.model.graph.tensor_roles import COLLECTIVES
from analyzer.model.user_cache import cache_folder
from analyzer.phantom.phantom_environment import (
    PhantomOptions,
    make_phantom_environment,
    parse_cards,
)

_MIB: Final = 1 << 20  # bytes
_NCCL_APART: Final = (2, 21)
"""The first TensorFlow that looks NCCL up by name. Earlier ones have it built in, and that asks the
driver for what only a card can answer: it ends the process."""

FOLDER: Final = ".phantom"
"""Where the libraries lie in the staging folder where the user keeps no cache."""


def variables(options: CaptureOptions, staging: Path) -> dict[str, str]:
    """Return the environment variables of a child that sees the cards.

    Args:
        options: What the user asked for.
        staging: A folder that is gone when the child has ended.

    Raises:
        InputError: the cards cannot be had on this machine, or have less memory than the limit.
    """
    kept = cache_folder()
    told = {one.name: options.assume.get(one.name, one.usual) for one in ASSUMPTIONS}
    gpus = parse_cards(options.gpu)
    for gpu in gpus:
        check_limit(gpu, options.memory_limit_bytes, told[CONTEXT.name])
    cards = PhantomOptions(
        gpus=gpus,
        context_bytes=told[CONTEXT.name],
        workspace_bytes=told[WORKSPACE.name],
        product_workspace_bytes=told[PRODUCT_WORKSPACE.name],
        recurrent_reserve=told[RECURRENT_RESERVE.name],
        batch_norm_reserve_bytes=told[BATCH_NORM_RESERVE.name],
    )
    return make_phantom_environment(cards, staging / FOLDER if kept is None else kept)


def phantom_note(options: CaptureOptions) -> PhantomNote:
    """Return what the run's note says of the cards."""
    return PhantomNote(
        cards=tuple(gpu.id for gpu in parse_cards(options.gpu)),
        assumed=dict(options.assume),
        memory_limit_bytes=options.memory_limit_bytes,
    )


def set_up(options: CaptureOptions, tf: Any) -> None:
    """Set TensorFlow's limit and growth on each card, before it makes its devices.

    Raises:
        InputError: TensorFlow does not see the cards.
    """
    cards = tf.config.list_physical_devices("GPU")
    if len(cards) != len(parse_cards(options.gpu)):
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


def check_collectives(op_types: Iterable[str], version: str) -> None:
    """Refuse a step whose cards sum over NCCL where phantom cards cannot serve it.

    Args:
        op_types: The types of the step's ops.
        version: TensorFlow's.

    Raises:
        InputError: this TensorFlow has NCCL built in.
    """
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < _NCCL_APART and not COLLECTIVES.isdisjoint(op_types):
        raise InputError(
            f"TensorFlow {version} has NCCL built in, which needs cards that are there: the step's "
            "all-reduce cannot run on phantom cards.",
            hint="TensorFlow 2.21 can; or name one card.",
        )
