"""What holds an object is named by the user's name for it, with the line that puts things there."""

from __future__ import annotations

import functools
import gc
import inspect
import queue
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import pytest

from analyzer.capture.watch.holders.holder_search import HolderSearch


class Thing:
    pass


class Shared:
    seen: ClassVar[list[Thing]] = []

    def note(self, thing: Thing) -> None:
        self.seen.append(thing)  # of the class


class Slotted:
    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: set[Thing] = set()

    def note(self, thing: Thing) -> None:
        self.items.add(thing)  # in a slot


class Record:
    def __init__(self, thing: Thing) -> None:
        self.thing = thing


class Grown:
    def __init__(self) -> None:
        self.outputs: tuple[Thing, ...] = ()
        self.last: tuple[Thing, ...] = ()  # a tuple of three

    def note(self, thing: Thing) -> None:
        self.outputs = (*self.outputs, thing)  # a longer tuple

    def roll(self, thing: Thing) -> None:
        self.last = (thing, *self.last[:2])


class Plain:
    def __init__(self) -> None:
        self.table: dict[int, list[Thing]] = {}
        self.samples: deque[tuple[Thing]] = deque()

    def words_of_first(self) -> str:
        batch = [self.samples[0]]
        return HolderSearch(inspect.currentframe()).find_all([(batch[0], batch[0][0])])[0].words

    def note(self, thing: Thing) -> None:
        self.table.setdefault(1, []).append(thing)  # of an instance

    def bind(self, thing: Thing) -> None:
        self.latest = thing  # bound anew


def enclosing() -> Callable[[Thing], None]:
    kept = []

    def note(thing: Thing) -> None:
        kept.append(thing)  # enclosed

    return note


def by_default(thing: Thing, sink: list[Thing] = []) -> None:  # noqa: B006
    sink.append(thing)  # of a default


@functools.cache
def remembered(number: int) -> Thing:
    return Thing()


def drawing() -> Iterator[Thing]:
    window = []
    while True:
        window.append(Thing())  # suspended
        yield window[-1]


enclosed, drawn = enclosing(), drawing()
shared, slotted, plain, grown = Shared(), Slotted(), Plain(), Grown()
later: list[Callable[[], None]] = []
waiting: queue.Queue[Thing] = queue.Queue()
ring: deque[Thing] = deque(maxlen=1)
failures: list[Exception] = []
records: list[Record] = []
history: list[tuple[Thing]] = []


def put_in_a_function(thing: Thing) -> None:
    later.append(lambda: print(thing))  # captured


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
    "of the class": (shared.note, "the list `seen` of class Shared", True),
    "in a slot": (slotted.note, "the set `items` of a Slotted", True),
    "of an instance": (plain.note, "the dictionary `table` of a Plain", True),
    "bound anew": (plain.bind, "the name `latest` of a Plain", False),
    "a longer tuple": (grown.note, "the tuple `outputs` of a Grown", True),
    "a tuple of three": (grown.roll, "the tuple `last` of a Grown", False),
    "enclosed": (enclosed, "the list `kept`", True),
    "of a default": (by_default, "the list `sink`", True),
    "captured": (put_in_a_function, "the global list `later`", True),
    "queued": (put_in_a_queue, "the global Queue under `waiting`", True),
    "def remembered": (lambda _: remembered(1), "the global cache of `remembered`", True),
    "suspended": (lambda _: next(drawn), "the list `window` in drawing", True),
    "in a record": (put_in_a_record, "the global list `records`", True),
    "# raised": (put_its_exception, "the global list `failures`", True),
    "in a ring": (put_in_a_ring, "the global deque `ring`", False),
}


@pytest.mark.parametrize("mark", FORMS)
def test_the_name_that_leads_to_it_is_told(mark: str) -> None:
    put, words, grows = FORMS[mark]
    made: Any = Thing()
    made = put(made) or made  # type: ignore[func-returns-value]
    found = _holders(made, inspect.currentframe())
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if mark in text)
    assert (words, f"{Path(__file__).name}:{line}", grows) in found


def test_a_list_of_this_call_goes_after_one_that_lasts() -> None:
    things = [Thing() for _ in range(3)]
    entries = [(thing,) for thing in things]
    history.extend(entries)
    sample = random.sample(history, 3)
    search = HolderSearch(inspect.currentframe())
    words = [
        search.find_all([(entry, thing)])[0].words
        for entry, thing in zip(entries, things, strict=True)
    ]
    assert words == ["the global list `history`"] * 3
    history.clear()
    plain.samples.extend(entries)
    assert plain.words_of_first() == "the deque `samples` of a Plain"
    plain.samples.clear()
    assert (
        HolderSearch(inspect.currentframe())
        .find_all([(sample, None)])[0]
        .words.startswith("the list `sample` in")
    )


def _holders(thing: Any, frame: FrameType | None) -> list[tuple[str, str, bool]]:
    search = HolderSearch(frame.f_back if frame is not None else None)
    owners = [
        one for one in gc.get_referrers(thing) if not inspect.isframe(one) or search.is_left(one)
    ]
    found = [
        search.find_all([(owner, thing)])[0] for owner in owners if owner is not search.local_names
    ]
    return [(one.words, one.where.rpartition("/")[2], one.grows) for one in found]


def test_a_look_at_local_names_keeps_nothing_alive() -> None:
    thing = Thing()
    left = weakref.ref(thing)
    HolderSearch(inspect.currentframe())
    del thing
    assert left() is None


def test_names_that_the_program_has_asked_for_itself_stay() -> None:
    thing = Thing()
    names = locals()
    HolderSearch(inspect.currentframe())
    assert names["thing"] is thing
