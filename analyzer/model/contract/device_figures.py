"""A process's own figures of its memory on the cards, and the driver's figures."""

from __future__ import annotations

import msgspec

from analyzer.model.contract.fields import Bytes, Count, Name, Text


class NvmlProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses memory of a card."""

    pid: int  # on the host, even for a container
    # all its memory; None if the driver does not report it (Windows' display driver)
    used_bytes: int | None
    name: str = ""  # untrusted
    is_own: bool = False


class NvmlCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card and the use of its memory, in bytes."""

    index: int  # NVML's number; ``CUDA_VISIBLE_DEVICES`` does not change it
    name: str
    uuid: str
    total_bytes: int  # with the driver's own
    used_bytes: int  # without ``reserved_bytes`` if the driver separates them
    free_bytes: int
    reserved_bytes: int | None  # by the driver and the firmware; None if not reported
    compute_mode: str  # whether several processes may use the card
    is_partitioned: bool  # MIG; the figures are the whole card's
    # the largest first; empty if the driver hides them, as in most containers
    processes: tuple[NvmlProcess, ...]


class NvmlReading(msgspec.Struct, frozen=True, kw_only=True):
    """All cards at one instant, and the driver's version."""

    driver: str
    cards: tuple[NvmlCard, ...]


class AllocatorFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One of TensorFlow's GPUs (a logical device) and its allocator, in bytes."""

    device: Name  # such as ``GPU:0``
    card_uuid: Name
    card_name: Name
    in_use_bytes: Bytes
    peak_in_use_bytes: Bytes
    limit_bytes: Bytes | None  # upper bound of the pool
    grows: bool | None
    region_bytes: Bytes  # regions with a tensor visible in Python: a lower bound of the pool
    regions: Count
    is_pool: bool  # False if the driver has the pool

    @property
    def pool_low_bytes(self) -> int:
        """A lower bound of the pool's size."""
        return max(self.region_bytes, self.in_use_bytes)

    @property
    def is_pool_exact(self) -> bool:
        """Whether the lower bound is exact: a pool that does not grow has at most one region."""
        is_taken = self.peak_in_use_bytes > 0
        return self.is_pool and self.grows is False and self.regions == int(is_taken)


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A process at one instant."""

    stage: Text
    pid: int
    versions: dict[Name, Name]
    allocators: tuple[AllocatorFigures, ...]  # one for each GPU; empty before they are made
    libraries: tuple[Name, ...]
    settings: dict[Name, Text]
    reading: NvmlReading | None  # None if the driver cannot be asked
    refusal: Text = ""  # why not


class MeasuredStages(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a process of the package after each stage of its work."""

    stages: tuple[ProcessFigures, ...]
    is_phantom: bool = False
