"""One failure with everything that is computed from it, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from analyzer.cards import find_gpu, gpus_named
from analyzer.model.choice import Choice
from analyzer.model.contract.report.oom_file import OomSize
from analyzer.model.errors import InputError
from analyzer.model.ranges import Range
from analyzer.oom.amounts import difference
from analyzer.oom.dumped_state import DumpedState
from analyzer.oom.log_records import FailedAllocator, LoggedCard, LoggedFailure, RefusalRun
from analyzer.oom.request_size import RequestSize

_LIMITED_SHARE = 0.8  # of the card's memory: a lower limit was set, or follows from other processes

_FRAMEWORKS = {
    "torch": "PyTorch",
    "torch_xla": "PyTorch/XLA",
    "jax": "JAX",
    "jaxlib": "JAX",
    "paddle": "PaddlePaddle",
    "mxnet": "MXNet",
    "cupy": "CuPy",
    "XlaRuntimeError": "JAX",
}


class Cause(Choice):
    """Why a request failed."""

    LARGER_THAN_CARD = "larger-than-card"
    LARGER_THAN_LIMIT = "larger-than-limit"
    FRAGMENTED = "fragmented"
    WASTED = "wasted-in-chunks"
    FULL = "full"
    DRIVER_REFUSED = "driver-refused"
    HELD_BY_OTHERS = "held-by-others"
    BESIDE_THE_POOL = "beside-the-pool"
    HOST = "host"
    CANNOT_TELL = "cannot-tell"


@dataclass(slots=True)
class CauseOfFailure:
    """The verdict on one failure: the cause, one sentence with its figures, and the reasons."""

    cause: Cause
    title: str
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class OomCase:
    """One failure with everything that is computed from it.

    ``request`` is None if the log does not give its size; ``card`` for the host and if no card is
    described. ``budget`` is XLA's for a program and the larger plan that it reached; None if it met
    all.
    """

    failure: LoggedFailure
    request: RequestSize | None
    state: DumpedState
    card: LoggedCard | None
    sizes: list[OomSize]
    refusals: list[RefusalRun]
    budget: tuple[int, int] | None = None

    @property
    def is_on_card(self) -> bool:
        """Whether card memory was requested."""
        name, device = self.failure.allocator.lower(), self.failure.device
        if "host" in name or "cpu" in name or self.failure.kind is FailedAllocator.HOST:
            return False
        return "gpu" in name or "GPU" in device or "gpu:" in device

    @property
    def in_use_bytes(self) -> int | None:
        """Bytes in use; the middle of their range."""
        return None if self.state.in_use is None else self.state.in_use.middle

    @property
    def limit_left(self) -> Range | None:
        """Limit minus bytes in use."""
        return difference(self.state.limit, self.state.in_use)

    @property
    def card_total(self) -> Range | None:
        """The card's memory: from the log, else from the catalogue by the card's name."""
        if self.failure.card_total is not None:
            return Range.exactly(self.failure.card_total)
        if self.card is None:
            return None
        return self.card.total or find_card_memory(self.card.name)

    @property
    def is_limited(self) -> bool:
        """Whether the limit is well below the memory of the card."""
        return is_limited(self.state.limit, self.card_total)


def find_component(failure: LoggedFailure) -> str:
    """Return the program or the library that found no memory."""
    if failure.component:
        return failure.component
    framework = find_framework(failure.framework)
    if not failure.is_compiled:
        return framework or "TensorFlow"
    return f"{framework} (XLA)" if framework else "XLA"


def find_framework(package: str) -> str:
    """Return the name of the framework of a package; empty for TensorFlow and if unknown."""
    return _FRAMEWORKS.get(package, "")


def is_limited(limit: Range | None, total: Range | None) -> bool:
    """Return whether a limit is well below the memory of a card."""
    return limit is not None and total is not None and limit.high < _LIMITED_SHARE * total.low


def find_card_id(name: str) -> str:
    """Return the catalogue's id of a card; empty if the name is unknown or fits several cards."""
    try:
        return find_gpu(name).id if name else ""
    except InputError:
        return ""


def find_card_memory(name: str) -> Range | None:
    """Return the memory that CUDA reports for a card; None if the catalogue lacks its name."""
    if not name:
        return None
    try:
        return Range.spanning(card.memory_bytes for card in gpus_named(name))
    except InputError:
        return None
