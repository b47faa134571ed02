"""What a process with TensorFlow says of its own memory on the cards, beside what the driver says."""

from __future__ import annotations

import msgspec

from analyzer.model.contract.fields import Bytes, Count, Name, Text, Word


class NvmlProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory of a card.

    Attributes:
        pid: Its number as the driver knows it: the host's, whatever container it runs in.
        used_bytes: All it holds: context, libraries, kernels and what it allocated. None where the
            driver does not say (Windows' display driver).
        name: Its program, where this system can see it; untrusted text.
        is_own: It is the process that reads.
    """

    pid: int
    used_bytes: int | None
    name: str = ""
    is_own: bool = False


class NvmlCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card and what is used of it, in bytes.

    Attributes:
        index: NVML's number: the order of the bus, whatever ``CUDA_VISIBLE_DEVICES`` says.
        name, uuid: What the driver calls it.
        total_bytes: Its memory, what the driver keeps for itself included.
        used_bytes: Used by processes, without ``reserved_bytes`` where the driver tells them apart.
        free_bytes: What is left.
        reserved_bytes: What the driver and the firmware keep; None where the driver does not say.
        compute_mode: Whether several processes may use it.
        is_partitioned: It is cut into instances (MIG): the figures are the whole card's.
        processes: Who holds memory of it, the largest first; empty where the driver shows none, as in
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
        device: ``GPU:0``, TensorFlow's number.
        card_uuid: The card it is on, as the driver calls it; empty where CUDA does not say.
        card_name: The card's name as TensorFlow gives it.
        in_use_bytes, peak_in_use_bytes: ``tf.config.experimental.get_memory_info``: chunks handed out
            now, and the most so far (or since ``reset_memory_stats``).
        limit_bytes: ``memory_limit`` of the device: all that the pool may become.
        grows: Whether the pool grows on demand; None where nothing says it.
        region_bytes: Regions of the pool in which a tensor of Python's lies, each whole, as the driver
            gave it out; the pool is at least that.
        regions: How many.
        is_pool: The allocator keeps a pool of its own (BFC); else the driver does.
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
        """The pool is at least this."""
        return max(self.region_bytes, self.in_use_bytes)

    @property
    def is_pool_exact(self) -> bool:
        """Whether the pool is known to the byte: one that does not grow is one region, or none yet."""
        is_taken = self.peak_in_use_bytes > 0
        return self.is_pool and self.grows is False and self.regions == int(is_taken)


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A process at one instant: TensorFlow's figures, the driver's, and what it has loaded.

    Attributes:
        stage: What was done up to this instant; empty for a program of the user's.
        pid: Its number.
        versions: TensorFlow's.
        allocators: One for each of TensorFlow's GPUs; empty before they are made.
        libraries: CUDA libraries that are loaded.
        settings: What the program set in TensorFlow itself, by name.
        reading: The cards; None where the driver cannot be asked.
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
    """What a process of ours read of itself, one thing done after the other."""

    stages: tuple[ProcessFigures, ...]
    is_phantom: bool = False
