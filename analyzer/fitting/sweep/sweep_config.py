"""The file that says what a sweep is over.

models = ["keras:MobileNetV2", "train.py:build"]
batches = [8, 32]
cards = ["t4", "a100-40gb"]        # or "cpu"
remedies = ["none", "mixed-float16"]
optimizer = "adam"                 # and mode, dtype_policy, jit, limit: for every cell
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu
from analyzer.model.contract.capture_request import TargetKind
from analyzer.model.contract.fields import Name, Text
from analyzer.model.contract.report.sweep_file import SweepQuestion
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes

CPU: Final = "cpu"
NONE: Final = "none"
_MOST_CELLS: Final = 10_000

_Batch = Annotated[int, Meta(ge=1, le=1 << 32)]


class SweepConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What a sweep is over; every list is crossed with the others.

    Attributes:
        models: Targets, as ``analyze estimate`` takes them.
        batches: Batch sizes.
        cards: Cards of the catalogue, or ``cpu``.
        remedies: Remedies as ``analyze fit --what-if`` names them, or ``none``.
        mode, optimizer, dtype_policy, jit: How each step is made.
        limit: What the allocator may use, such as ``16GiB``; empty for each card's own limit.
    """

    models: Annotated[tuple[Text, ...], Meta(min_length=1)]
    batches: Annotated[tuple[_Batch, ...], Meta(min_length=1)] = (32,)
    cards: Annotated[tuple[Name, ...], Meta(min_length=1)] = (CPU,)
    remedies: Annotated[tuple[Name, ...], Meta(min_length=1)] = (NONE,)
    mode: Name = ""
    optimizer: Name = ""
    dtype_policy: Name = ""
    jit: bool | None = None
    limit: Name = ""


def questions_in(path: Path) -> tuple[SweepQuestion, ...]:
    """Return what the cells of a configuration ask, in its order, each once.

    Args:
        path: A TOML file.

    Raises:
        InputError: it cannot be read, or names something that there is not.
    """
    config = _read(path)
    for model in config.models:
        if parse_target(model).kind is TargetKind.TRACE:
            raise InputError(
                f"{path}: {model} is a trace or an estimate of one batch.",
                hint="Name the model or step itself.",
            )
    cards = [CPU if card.lower() == CPU else find_gpu(card).id for card in config.cards]
    limit = parse_bytes(config.limit) if config.limit else None
    asked = {
        SweepQuestion(
            target=model,
            batch_size=batch,
            card=card,
            remedy="" if remedy == NONE else remedy,
            mode=config.mode,
            optimizer=config.optimizer,
            dtype_policy=config.dtype_policy,
            jit=config.jit,
            limit_bytes=limit,
        ): None
        for model in config.models
        for card in cards
        for remedy in config.remedies
        for batch in config.batches
    }
    if len(asked) > _MOST_CELLS:
        raise InputError(
            f"{path} asks for {len(asked):,} cells.", hint=f"At most {_MOST_CELLS:,} are made."
        )
    return tuple(asked)


def _read(path: Path) -> SweepConfig:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=SweepConfig)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}.", hint="Name a TOML file."
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: {str(error).splitlines()[0]}.",
            hint='It needs models = ["keras:NAME"], and may have batches, cards and remedies.',
        ) from None
    except ImportError:
        raise InputError(
            "TOML cannot be read by this Python.", hint="pip install tomli, or use Python 3.11."
        ) from None
