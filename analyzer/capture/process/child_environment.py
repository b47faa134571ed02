"""Environment variables of a child process: allocator, logging, simulated cards, the target's settings.

TensorFlow reads its variables when it is imported, before the target's file runs in a capture. So the
``TF_`` variables that the file sets at its top level are read from its source.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from analyzer.capture.process.installed_packages import check_packages
from analyzer.cards import check_limit
from analyzer.model.contract.capture_request import (
    ASSUMPTIONS,
    BATCH_NORM_RESERVE,
    CONTEXT,
    PRODUCT_WORKSPACE,
    RECURRENT_RESERVE,
    WORKSPACE,
    CaptureKind,
    CaptureOptions,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.run_note import PhantomNote
from analyzer.model.errors import InputError
from analyzer.model.graph.host_copies import COLLECTIVES
from analyzer.model.user_cache import cache_folder
from analyzer.phantom.phantom_environment import (
    PhantomOptions,
    make_phantom_environment,
    make_tool_environment,
    parse_cards,
)

PHANTOM_FOLDER: Final = ".phantom"
"""Folder for the simulated card's libraries in the staging folder, if the user has no cache."""
_NCCL_BY_NAME: Final = (2, 21)
"""First TensorFlow that looks NCCL up by name. Earlier ones contain NCCL, which asks the driver for
features that only a real card has, and ends the process."""
_DECLARED: Final = re.compile(
    r"""^(?:os\.)?environ(?:\[|(?P<default>\.setdefault\())["'](?P<name>TF_(?!CPU_|CPP_)\w+)["']"""
    r"""(?:\]\s*=|,)\s*["'](?P<value>[^"'\n]*)["']""",
    re.MULTILINE,
)
"""A variable set at the top level, except those for the allocator and the log, which a capture sets."""


def make_base_environment(*, log_level: str | None, host_events: bool = True) -> dict[str, str]:
    """Return the variables that every child gets; InputError if steps cannot be run here.

    Args:
        log_level: Default level of TensorFlow's log; None for TensorFlow's own. Level ``0`` puts the
            list of chunks of a full allocator into the log.
        host_events: Whether the CPU's allocator writes memory events, as a card's always does.
    """
    check_packages()
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if backend != "tensorflow":
        raise InputError(
            f"The environment variable KERAS_BACKEND is {backend}; only TensorFlow can be analysed.",
            hint="Set KERAS_BACKEND=tensorflow.",
        )
    environment = {**os.environ, "KERAS_BACKEND": backend}
    if host_events:
        environment.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
    if log_level is not None:
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", log_level)
    return environment


def make_environment(
    spec: TargetSpec, options: CaptureOptions, kind: CaptureKind, staging: Path
) -> dict[str, str]:
    """Return the variables of a child that captures ``spec``."""
    on_card = kind != "static" and bool(options.gpu)
    level = "0" if kind == "run" else "1"
    environment = make_base_environment(log_level=level, host_events=not on_card)
    environment |= read_declared_environment(spec, environment)
    if kind != "static" and not options.gpu and options.memory_limit_bytes is not None:
        mib = max(options.memory_limit_bytes >> 20, 1)
        environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(mib)
    if on_card:
        environment |= make_card_environment(options, staging)
    elif hides_own_gpus(options):
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    return environment


def hides_own_gpus(options: CaptureOptions) -> bool:
    """Return whether the child must not see the machine's own GPUs."""
    return options.device == "cpu" or bool(options.gpu)


def read_declared_environment(spec: TargetSpec, base: Mapping[str, str]) -> dict[str, str]:
    """Return the ``TF_`` variables that a target's Python file sets at its top level.

    ``setdefault`` changes no variable of ``base``, the environment.
    """
    declared: dict[str, str] = {}
    if spec.kind in (TargetKind.FILE, TargetKind.MODULE):
        with contextlib.suppress(OSError, UnicodeError):  # loading the target reports the error
            for found in _DECLARED.finditer(Path(spec.source).read_text("utf-8")):
                if not (found["default"] and found["name"] in {*base, *declared}):
                    declared[found["name"]] = found["value"]
    return declared


def make_card_environment(options: CaptureOptions, staging: Path) -> dict[str, str]:
    """Return the variables of a child that sees the simulated cards ``options.gpu``.

    InputError if this machine cannot run simulated cards, or if they are smaller than the limit.
    """
    assumed = {one.name: options.assume.get(one.name, one.usual) for one in ASSUMPTIONS}
    gpus = parse_cards(options.gpu)
    for gpu in gpus:
        check_limit(gpu, options.memory_limit_bytes, assumed[CONTEXT.name])
    cards = PhantomOptions(
        gpus=gpus,
        context_bytes=assumed[CONTEXT.name],
        workspace_bytes=options.assume.get(WORKSPACE.name),
        product_workspace_bytes=assumed[PRODUCT_WORKSPACE.name],
        recurrent_reserve=assumed[RECURRENT_RESERVE.name],
        batch_norm_reserve_bytes=assumed[BATCH_NORM_RESERVE.name],
    )
    own = staging / PHANTOM_FOLDER
    return make_phantom_environment(cards, cache_folder() or own) | make_tool_environment(own)


def make_phantom_note(options: CaptureOptions) -> PhantomNote:
    """Return the run note's record of the simulated cards."""
    return PhantomNote(
        cards=tuple(gpu.id for gpu in parse_cards(options.gpu)),
        assumed=dict(options.assume),
        memory_limit_bytes=options.memory_limit_bytes,
    )


def configure_cards(options: CaptureOptions, tf: Any) -> None:
    """Set TensorFlow's limit and growth on each simulated card, before it makes its devices."""
    cards = tf.config.list_physical_devices("GPU")
    if len(cards) != len(parse_cards(options.gpu)):
        raise InputError(
            f"This TensorFlow ({tf.__version__}) cannot use simulated cards.",
            hint="analyze estimate --gpu NAME predicts with any.",
        )
    for card in cards:
        if options.memory_limit_bytes is not None:
            limit = tf.config.LogicalDeviceConfiguration(options.memory_limit_bytes / (1 << 20))
            tf.config.set_logical_device_configuration(card, [limit])
        if options.growth:
            tf.config.experimental.set_memory_growth(card, True)


def check_collectives(op_types: Iterable[str], version: str) -> None:
    """Raise InputError if a step on simulated cards needs NCCL and this TensorFlow contains it."""
    parts = tuple(int(part) for part in version.split(".")[:2])
    if parts < _NCCL_BY_NAME and not COLLECTIVES.isdisjoint(op_types):
        raise InputError(
            f"TensorFlow {version} contains NCCL, which needs real cards: the step's all-reduce cannot "
            "run on simulated cards.",
            hint="Use TensorFlow 2.21, or name one card.",
        )
