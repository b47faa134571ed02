"""Environment variables of a child process: allocator, logging, simulated cards, the target's settings.

TensorFlow reads its variables when it is imported, before the target's file runs in a capture. So the
``TF_`` variables that the file sets at its top level are read from its source.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from analyzer.cards.catalogue import system_reserve
from analyzer.model.contract.child_messages import (
    CONTEXT,
    CaptureKind,
    CaptureOptions,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.run_note import SimulatedCardNote
from analyzer.model.errors import FailureKind, InputError
from analyzer.model.graph.buffer_sharing import COLLECTIVES
from analyzer.model.machine import cache_folder
from analyzer.simulated_card import card_environment
from analyzer.simulated_card.core_calls import (
    likely_bytes,
    register_convolutions,
)

# First Keras with ``Variable._initialize_with_initializer``, which makes variables without memory.
OLDEST_KERAS = (3, 9)
_ELSEWHERE = "Reading traces, analyze oom, gpus and diff work without it."

Variables = dict[str, str]  # of an environment


def check_packages() -> None:
    """Raise InputError on Windows, and if TensorFlow or Keras is missing, or Keras is too old."""
    if sys.platform == "win32":
        raise InputError(
            "Steps cannot be run or built on Windows; traces, analyze oom, gpus and diff work.",
            "Use WSL 2: run `wsl --install`, then install tf-memory-analyzer there.",
        )

    for package in ("tensorflow", "keras"):
        found: object = sys.modules.get(package)
        with suppress(ImportError):  # of a damaged package
            found = found or importlib.util.find_spec(package)

        if found is None:
            raise InputError(
                f"The package {package} is not installed, and this command needs it.",
                f"pip install {package}. {_ELSEWHERE}",
            )

    # such as a nightly build
    with suppress(PackageNotFoundError, ValueError):
        keras = version("keras")
        release = tuple(map(int, keras.split(".")[:2]))

        if release < OLDEST_KERAS:
            oldest = ".".join(map(str, OLDEST_KERAS))
            raise InputError(
                f"Keras {keras} is installed; Keras {oldest} or newer is needed.",
                f"pip install 'keras>={oldest}'.",
            )


# Folder for the simulated card's libraries in the staging folder, if the user has no cache.
SIMULATED_CARD_FOLDER = ".simulated_card"

# First TensorFlow that looks NCCL up by name. Earlier ones contain NCCL, which asks the driver for
# features that only a real card has, and ends the process.
_NCCL_BY_NAME = (2, 21)

# A variable set at the top level, except those for the allocator and the log, which a capture sets.
_DECLARED = re.compile(
    r"""^(?:import [^;\n]*;[ \t]*)?(?:os\.)?environ(?:\[|(?P<default>\.setdefault\())"""
    r"""["'](?P<name>KERAS_BACKEND|TF_(?!CPU_|CPP_)\w+)["']"""
    r"""(?:\]\s*=|,)\s*["'](?P<value>[^"'\n]*)["']""",
    re.MULTILINE,
)


def make_base_environment(
    *, log_level: str | None, host_events: bool = True
) -> Variables:
    """Return the variables that every child gets; InputError if steps cannot be run here.

    Level ``0`` of the log has the list of chunks of a full allocator; None is TensorFlow's own level.
    With ``host_events`` the CPU's allocator writes memory events, as a card's always does.
    """
    check_packages()
    environment = {
        **os.environ,
        "KERAS_BACKEND": os.environ.get("KERAS_BACKEND") or "tensorflow",
    }

    _check_backend(environment, "the environment")

    if host_events:
        environment.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")

    if log_level is not None:
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", log_level)

    return environment


def _check_backend(variables: Mapping[str, str], place: str) -> None:
    """Raise InputError if the variables of a place select another backend than TensorFlow."""
    if (backend := variables.get("KERAS_BACKEND", "tensorflow")) != "tensorflow":
        traces = (
            " `analyze trace LOGDIR` opens profiles of JAX." if backend == "jax" else ""
        )
        raise InputError(
            f"In {place}, KERAS_BACKEND is {backend}; only TensorFlow can be analysed.",
            f"Set it to tensorflow.{traces}",
        )


def make_environment(
    spec: TargetSpec,
    options: CaptureOptions,
    kind: CaptureKind,
    staging: Path,
) -> Variables:
    """Return the variables of a child that captures ``spec``."""
    on_card = kind != "static" and bool(options.gpu)
    level = "0" if kind == "run" else "1"
    environment = make_base_environment(log_level=level, host_events=not on_card)

    if spec.kind in (TargetKind.FILE, TargetKind.MODULE):
        environment |= read_declared_environment(Path(spec.source), environment)

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


def read_declared_environment(file: Path, base: Mapping[str, str]) -> Variables:
    """Return the variables of a file's top level; ``setdefault`` changes none of ``base``.

    InputError if they select another backend of Keras.
    """
    declared: Variables = {}

    # loading the file reports the error
    with suppress(OSError, UnicodeError):
        for found in _DECLARED.finditer(file.read_text("utf-8")):
            if not (found["default"] and found["name"] in {*base, *declared}):
                declared[found["name"]] = found["value"]

    _check_backend(declared, str(file))

    return declared


def make_card_environment(options: CaptureOptions, staging: Path) -> Variables:
    """Return the variables of a child that sees the simulated cards; their tools are in the cache."""
    cache = cache_folder() or staging / SIMULATED_CARD_FOLDER
    return card_environment.make_card_environment(options, cache)


def find_spare_bytes(options: CaptureOptions) -> tuple[int, ...]:
    """Return the bytes by which the short pool of each card is smaller than its limit."""
    held = options.assume.get(CONTEXT.name, CONTEXT.usual)
    assert held is not None
    spare = []

    for gpu in card_environment.parse_cards(options.gpu):
        free = gpu.memory_bytes - held
        whole, short = (
            size - system_reserve(size, gpu.compute_capability)
            for size in (free, min(free, card_environment.SHORT_BYTES))
        )

        if options.memory_limit_bytes is not None:
            whole = options.memory_limit_bytes
            short = min(options.memory_limit_bytes, card_environment.SHORT_BYTES)

        spare.append(whole - short)

    return tuple(spare)


def can_have_short_pool(options: CaptureOptions, kind: CaptureKind) -> bool:
    """Return whether a run may start with a short pool, because the card's is larger."""
    is_whole = (
        kind == "static" or not options.gpu or options.growth or options.is_unlimited
    )
    return not is_whole and any(find_spare_bytes(options))


def make_card_note(options: CaptureOptions) -> SimulatedCardNote:
    """Return the run note's record of the simulated cards."""
    return SimulatedCardNote(
        cards=tuple(gpu.id for gpu in card_environment.parse_cards(options.gpu)),
        assumed=dict(options.assume),
        memory_limit_bytes=options.memory_limit_bytes,
        is_unlimited=options.is_unlimited,
        spare_bytes=find_spare_bytes(options) if options.has_short_pool else (),
        workspaces=tuple(sorted(likely_bytes)),
    )


def configure_cards(options: CaptureOptions, tf: Any) -> None:
    """Set each simulated card's algorithms, limit and growth, before TensorFlow makes its devices."""
    gpus = card_environment.parse_cards(options.gpu)
    cards = tf.config.list_physical_devices("GPU")

    if len(cards) != len(gpus):
        raise InputError(
            f"This TensorFlow ({tf.__version__}) cannot use simulated cards.",
            "analyze estimate --gpu NAME predicts with any.",
            kind=FailureKind.NO_CARD,
        )

    register_convolutions(gpus)

    for card in cards:
        if options.memory_limit_bytes is not None and not options.is_unlimited:
            limit_bytes = options.memory_limit_bytes
            if options.has_short_pool:
                limit_bytes = min(limit_bytes, card_environment.SHORT_BYTES)

            limit = tf.config.LogicalDeviceConfiguration(limit_bytes / (1 << 20))
            tf.config.set_logical_device_configuration(card, [limit])

        if options.growth or options.is_unlimited:
            tf.config.experimental.set_memory_growth(card, True)


def check_collectives(op_types: Iterable[str], version: str) -> None:
    """Raise InputError if a step on simulated cards needs NCCL and this TensorFlow contains it."""
    parts = tuple(int(part) for part in version.split(".")[:2])
    if parts < _NCCL_BY_NAME and not COLLECTIVES.isdisjoint(op_types):
        raise InputError(
            f"TensorFlow {version} contains NCCL, which needs real cards: the step's all-reduce cannot "
            "run on simulated cards.",
            "Use TensorFlow 2.21, or name one card.",
            kind=FailureKind.NO_CARD,
        )
