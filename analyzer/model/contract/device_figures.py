"""A process's own figures of its memory on the cards, and the driver's figures."""

from __future__ import annotations

import msgspec

from analyzer.model.contract.fields import Bytes, Count, Name, Text, Word


class NvmlProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses memory of a card.

    Attributes:
        pid: Process number on the host, even if the process runs in a container.
        used_bytes: Context, libraries, kernels and allocations together; None if the driver does not
            report it (Windows' display driver).
        name: Its program, if visible; untrusted text.
        is_own: Whether it is the reading process itself.
    """

    pid: int
    used_bytes: int | None
    name: str = ""
    is_own: bool = False


class NvmlCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card and the use of its memory, in bytes.

    Attributes:
        index: NVML's number, in the order of the bus; ``CUDA_VISIBLE_DEVICES`` does not change it.
        name, uuid: The driver's name and identifier.
        total_bytes: All memory, including the driver's own.
        used_bytes: Used by processes, without ``reserved_bytes`` if the driver separates them.
        free_bytes: Free memory.
        reserved_bytes: Used by the driver and the firmware; None if the driver does not report it.
        compute_mode: Whether several processes may use the card.
        is_partitioned: Whether it is split into instances (MIG); the figures are the whole card's.
        processes: The processes that use it, the largest first; empty if the driver hides them, as in
            most containers.
    """

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None
    compute_mode: str
    is_partitioned: bool
    processes: tuple[NvmlProcess, ...]


class NvmlReading(msgspec.Struct, frozen=True, kw_only=True):
    """All cards at one instant, and the driver's version."""

    driver: str
    cards: tuple[NvmlCard, ...]


class AllocatorFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One of TensorFlow's GPUs (a logical device) and its allocator, in bytes.

    Attributes:
        device: TensorFlow's name, such as ``GPU:0``.
        card_uuid: The driver's identifier of the card; empty if unknown.
        card_name: TensorFlow's name of the card.
        in_use_bytes, peak_in_use_bytes: Allocated now, and at most so far (or since
            ``reset_memory_stats``), from ``tf.config.experimental.get_memory_info``.
        limit_bytes: ``memory_limit`` of the device, the upper bound of the pool.
        grows: Whether the pool grows on demand; None if unknown.
        region_bytes: Total size of the pool's regions that hold a tensor visible in Python; a lower
            bound of the pool.
        regions: Number of these regions.
        is_pool: Whether the allocator has its own pool (BFC); otherwise the driver has it.
    """

    device: Word
    card_uuid: Word
    card_name: Name
    in_use_bytes: Bytes
    peak_in_use_bytes: Bytes
    limit_bytes: Bytes | None
    grows: bool | None
    region_bytes: Bytes
    regions: Count
    is_pool: bool

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
    """A process at one instant.

    Attributes:
        stage: The work done before this instant; empty for a user's program.
        pid: Process number.
        versions: Versions of TensorFlow and its libraries.
        allocators: One for each of TensorFlow's GPUs; empty before they are made.
        libraries: Loaded CUDA libraries.
        settings: TensorFlow settings that the program made, by name.
        reading: The cards; None if the driver cannot be asked.
        refusal: Why it cannot.
    """

    stage: Text
    pid: int
    versions: dict[Word, Word]
    allocators: tuple[AllocatorFigures, ...]
    libraries: tuple[Word, ...]
    settings: dict[Word, Text]
    reading: NvmlReading | None
    refusal: Text = ""


class MeasuredStages(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a process of the package after each stage of its work."""

    stages: tuple[ProcessFigures, ...]
    is_phantom: bool = False
