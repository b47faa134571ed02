"""The record of one card: typed, written as one compressed JSON file of at most 16 MiB.

Figures: "Real cards" in docs/accuracy.md.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Annotated, Final

import msgspec

SIMULATED: Final = "RECORD_SIMULATED_CARD"
"""Environment variable: name of the simulated card of a child process."""
RECORD_VERSION: Final = 1
MOST_BYTES: Final = 16 << 20
"""Largest size of a file, and of its text."""

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
"""Bytes."""


def offer_algorithms() -> None:
    """Let a simulated cuDNN of this process offer its algorithms; a real card's needs no help."""
    if name := os.environ.get(SIMULATED):
        from analyzer.simulated_card.card_environment import parse_cards
        from analyzer.simulated_card.core_calls import register_convolutions

        register_convolutions(parse_cards(name))


class CardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The card and its memory; None if not read.

    Attributes:
        name, driver: As the driver reports them.
        compute_capability: Major and minor version.
        total_bytes: CUDA's total.
        free_before_bytes: Free memory before this process has a context.
        free_after_bytes: Free memory after it has one.
        tensorflow: Version of TensorFlow; empty if it is not installed.
        limit_bytes: TensorFlow's memory limit.
        is_simulated: Whether the card is simulated.
    """

    name: str = ""
    driver: str = ""
    compute_capability: tuple[int, int] | None = None
    total_bytes: Size | None = None
    free_before_bytes: Size | None = None
    free_after_bytes: Size | None = None
    tensorflow: str = ""
    limit_bytes: Size | None = None
    is_simulated: bool = False


class Candidate(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An algorithm for a convolution, by cuDNN's number.

    Attributes:
        algorithm: ``cudnnConvolutionFwdAlgo_t`` and its like for the gradients.
        workspace_bytes: Its workspace.
        time_us: Its time; 0 if it was not run.
        math: ``cudnnMathType_t``.
    """

    algorithm: int
    workspace_bytes: Size
    time_us: float
    math: int


class ConvolutionRow(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates of one convolution, the fastest first.

    Attributes:
        kind: ``forward``, ``input`` or ``filter``: the result, or the gradient.
        shape: Axes of the input, batch and channels first.
        filters, kernel, stride, padding, groups: The convolution, one number for all axes.
        dtype, layout: Such as ``float32`` and ``NCHW``.
        allows_tf32: Whether float32 may be rounded to TF32.
        candidates: The algorithms that cuDNN offers.
        failed: Why there are none; empty if there are.
    """

    kind: str
    shape: tuple[int, ...]
    filters: int
    kernel: int
    stride: int
    padding: int
    groups: int
    dtype: str
    layout: str
    allows_tf32: bool
    candidates: tuple[Candidate, ...] = ()
    failed: str = ""


class ConvolutionChoice(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The algorithm that TensorFlow chose for a convolution.

    Attributes:
        direction: ``forward``, ``input_gradient`` or ``filter_gradient``.
        image: Batch, channels and sides of the image, with padding that TensorFlow copies.
        filters, kernel, stride: The convolution, one number for both axes.
        result: Side of the result.
        dtype: Such as ``float32``.
        bytes: Its workspace.
        largest_trial_bytes: The largest workspace that was tried.
    """

    direction: str
    image: tuple[int, ...]
    filters: int
    kernel: int
    result: int
    stride: int
    dtype: str
    bytes: Size
    largest_trial_bytes: Size


class PeakRow(msgspec.Struct, frozen=True, kw_only=True):
    """A traced step; None if not measured.

    Attributes:
        name: File and function of the model, and whether it is compiled.
        batch: Batch size.
        requested_bytes, allocated_bytes: Peak of the steady step.
        first_requested_bytes: Requested peak of the first step.
        own_bytes: Bytes of the requested peak that the steady step allocates.
        failed: The error in a line; empty if it ran.
        seconds: Time of its trace.
    """

    name: str
    batch: int
    requested_bytes: Size | None = None
    allocated_bytes: Size | None = None
    first_requested_bytes: Size | None = None
    own_bytes: Size | None = None
    failed: str = ""
    seconds: int | None = None


class CardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one card.

    Attributes:
        version: Version of this record.
        card: The card.
        cudnn: cuDNN's version as a number, such as 91002; 0 if it is not installed.
        convolutions: The sweep by cuDNN's own library.
        choices: Convolutions of TensorFlow.
        peaks: Traced steps.
        notes: Parts that could not be measured, and why.
    """

    version: int = RECORD_VERSION
    card: CardFacts
    cudnn: int = 0
    convolutions: tuple[ConvolutionRow, ...] = ()
    choices: tuple[ConvolutionChoice, ...] = ()
    peaks: tuple[PeakRow, ...] = ()
    notes: tuple[str, ...] = ()


def write_record(path: Path, record: CardRecord) -> None:
    """Write a record.

    Raises:
        ValueError: it is larger than ``MOST_BYTES``.
    """
    text = msgspec.json.encode(record)
    if len(text) > MOST_BYTES:
        raise ValueError(
            f"the record has {len(text):,} bytes; at most {MOST_BYTES:,} are allowed"
        )
    path.write_bytes(gzip.compress(text))


def read_record(path: Path) -> CardRecord:
    """Read a record.

    Raises:
        ValueError: the file is not a record, is too large, or is of another version.
    """
    try:
        with gzip.open(path) as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ValueError(f"{path} is larger than {MOST_BYTES:,} bytes")
        record = msgspec.json.decode(text, type=CardRecord)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise ValueError(f"{path} is not a record of a card: {error}") from None
    if record.version != RECORD_VERSION:
        raise ValueError(
            f"{path} has version {record.version}; this code reads {RECORD_VERSION}"
        )
    return record
