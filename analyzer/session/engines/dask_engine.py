"""Calls on a Dask cluster that exists already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from analyzer.model.errors import InputError

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

_WAIT_S: Final = 15
"""Seconds to wait for the scheduler to answer."""

_RETRIES: Final = 2


def run_on_dask(
    call: Callable[[_Item], _Made], items: Sequence[_Item], address: str
) -> Iterator[tuple[int, _Made | None]]:
    """Yield what a call makes of each item, with the item's place, in the order in which they end.

    The cluster calls again what a worker had in hand that is gone.

    Args:
        call: A function of a module that the workers have too.
        items: What it is called with.
        address: The scheduler's address, such as ``tcp://10.0.0.1:8786``.

    Yields:
        The place of an item and what the call returned; None where every worker that took it died.

    Raises:
        InputError: Dask is not installed, or no scheduler answers.
    """
    distributed = _distributed()
    client = _client(distributed, address)
    with client:
        futures = client.map(call, items, pure=False, retries=_RETRIES)
        places = {future.key: place for place, future in enumerate(futures)}
        for future in distributed.as_completed(futures, loop=client.loop):
            try:
                made = future.result()
            except distributed.KilledWorker:
                made = None
            yield places[future.key], made


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise InputError(
            "--scheduler needs Dask, which is not installed.",
            hint="pip install 'tf-memory-analyzer[dask]'",
        ) from None
    return distributed


def _client(distributed: Any, address: str) -> Any:
    try:
        return distributed.Client(address, timeout=_WAIT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"No Dask scheduler answers at {address}: {str(error).splitlines()[0][:200]}.",
            hint="Give the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786.",
        ) from None
