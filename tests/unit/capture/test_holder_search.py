"""An object's holder is named by the user's name for it, with the line that adds to it."""

import gc
import inspect
import queue
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from analyzer.capture.watch.holder_search import HolderSearch
from analyzer.capture.watch.program_objects import (
    _count_own_bytes,
    count_host_containers,
    find_grown_containers,
)
from analyzer.capture.watch.user_lines import list_codes


class Thing:
    pass


class Keeper:
    seen: ClassVar[list[Thing]] = []

    def __init__(self) -> None:
        self.table: dict[int, list[Thing]] = {}

    def put_in_class(self, thing: Thing) -> None:
        self.seen.append(thing)  # of the class

    def put(self, thing: Thing) -> None:
        self.table.setdefault(1, []).append(thing)  # of an instance

    def bind(self, thing: Thing) -> None:
        self.latest = thing  # bound again


class Record:
    def __init__(self, thing: Thing) -> None:
        self.thing = thing


def enclosing() -> Callable[[Thing], None]:
    kept = []

    def put(thing: Thing) -> None:
        kept.append(thing)  # enclosed

    return put


enclosed, keeper = enclosing(), Keeper()
losses: list[object] = []
waiting: queue.Queue[Thing] = queue.Queue()
ring: deque[Thing] = deque(maxlen=9)
failures: list[Exception] = []
records: list[Record] = []
replay: list[Thing] = []


def put_in_a_list(thing: Thing) -> None:
    losses.append(float(1))
    losses.append(thing)  # in a list


def put_in_a_queue(thing: Thing) -> None:
    waiting.put(thing)  # queued


def put_in_a_record(thing: Thing) -> None:
    records.append(Record(thing))  # in a record


def put_in_a_ring(thing: Thing) -> None:
    ring.append(thing)  # in a ring


def raising(thing: Thing) -> None:
    inner = thing
    raise ValueError(type(inner))


def put_its_exception(thing: Thing) -> None:
    try:
        raising(thing)
    except ValueError as error:
        failures.append(error)  # raised


FORMS = {
    "in a list": (put_in_a_list, "the global list `losses`", True),
    "of the class": (keeper.put_in_class, "the list `seen` of class Keeper", True),
    "of an instance": (keeper.put, "the dictionary `table` of a Keeper", True),
    "bound again": (keeper.bind, "the name `latest` of a Keeper", False),
    "enclosed": (enclosed, "the list `kept`", True),
    "queued": (put_in_a_queue, "the global Queue under `waiting`", True),
    "in a record": (put_in_a_record, "the global list `records`", True),
    "raised": (put_its_exception, "the global list `failures`", True),
    "in a ring": (put_in_a_ring, "the global deque `ring`", False),
}


@pytest.fixture(autouse=True)
def _search_this_module_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave out the other tests, which are a user's own modules too, and what they have made."""
    found = {__name__: __file__}
    monkeypatch.setattr(HolderSearch, "_find_modules", lambda search: found)
    gc.freeze()
    yield
    gc.unfreeze()


def test_each_holder_is_named_with_its_line() -> None:
    """One search for all: it looks through every object that the module leads to."""
    things: dict[str, Any] = {mark: Thing() for mark in FORMS}
    for mark, (put, _, _) in FORMS.items():
        put(things[mark])

    removed = Thing()
    replay.append(removed)
    if len(replay) > 9:
        replay.pop(0)

    found = HolderSearch(None).find_all([*things.values(), removed])
    lines = Path(__file__).read_text().splitlines()
    for mark, (_, words, grows) in FORMS.items():
        line = next(n for n, text in enumerate(lines, 1) if f"# {mark}" in text)
        where = f"{Path(__file__).name}:{line}"
        holders = found[id(things[mark])]
        named = [
            (one.holder, one.where.rpartition("/")[2], one.grows) for one in holders
        ]
        assert (words, where, grows) in named
        assert mark != "in a list" or not any(one.removes for one in holders)

    assert any(one.removes for one in found[id(removed)] if one.grows)


def test_a_search_keeps_nothing_alive() -> None:
    thing = Thing()
    left = weakref.ref(thing)
    HolderSearch(inspect.currentframe())
    del thing
    assert left() is None


def test_containers_that_each_step_makes_do_not_grow() -> None:
    kept = [bytes(9000)]
    before = count_host_containers()
    batch = [bytes(9000)] * 4  # of one step
    kept += batch
    rows = find_grown_containers(before, 2, HolderSearch(inspect.currentframe()))
    names = [row.holder.split("`")[1] for row in rows]
    assert "kept" in names
    assert "batch" not in names


def test_loops_around_different_steps_have_different_codes() -> None:
    def make_loop(step: Callable[[], None]) -> Callable[[], None]:
        return lambda: step()

    train = list(list_codes(make_loop(enclosing)))
    other = list(list_codes(make_loop(test_a_search_keeps_nothing_alive)))
    assert train[0] == other[0]
    assert train[1] != other[1]


def test_models_count_the_variables_that_no_other_model_has() -> None:
    shared, own = (
        SimpleNamespace(dtype="float32", shape=(size,)) for size in (1024, 256)
    )
    models = [
        SimpleNamespace(variables=[shared, own]),
        SimpleNamespace(variables=[shared]),
    ]
    assert _count_own_bytes(models) == 1024
