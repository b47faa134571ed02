"""Plausible damages of a profiler trace, each a function that alters an XSpace message in place.

A damage gets a ``Subject``: the message, a seeded source of randomness and a rate (the share of
the events that it hits, at least one). What it returns is not looked at.

Figures: none; tests/unit/tracing/test_damaged_traces.py checks a part of the damages.
"""

from __future__ import annotations

from typing import Final

from damage_subject import DAMAGES, MEMORY, Subject, damage

__all__ = ["DAMAGES", "SHORTER", "Subject"]

SHORTER: Final = frozenset(
    {
        "first half lost",
        "second half lost with its marks",
        "step marks lengthened",
        "step marks lost",
        "step marks shifted",
    }
)
"""What leaves a trace that another run, or other marks, might have written: only a note of the capture
tells it apart."""


@damage
def lost_allocations(subject: Subject) -> None:
    subject.drop(subject.memory(MEMORY[0]))


@damage
def lost_frees(subject: Subject) -> None:
    subject.drop(subject.memory(MEMORY[1]))


@damage
def lost_events(subject: Subject) -> None:
    subject.drop(subject.memory())


def _twice(subject: Subject, kind: bytes) -> None:
    for line, event in subject.memory(kind):
        copy = line.events.add()
        copy.CopyFrom(event)
        copy.offset_ps += subject.rng.choice([0, 1000, 10**6, 10**9])


@damage
def duplicated_allocations(subject: Subject) -> None:
    _twice(subject, MEMORY[0])


@damage
def duplicated_frees(subject: Subject) -> None:
    _twice(subject, MEMORY[1])


@damage
def allocations_called_frees(subject: Subject) -> None:
    for _, event in subject.memory(MEMORY[0]):
        event.metadata_id = subject.kinds[MEMORY[1]]


@damage
def frees_called_allocations(subject: Subject) -> None:
    for _, event in subject.memory(MEMORY[1]):
        event.metadata_id = subject.kinds[MEMORY[0]]


@damage
def requested_above_allocated(subject: Subject) -> None:
    for _, event in subject.memory(MEMORY[0]):
        requested, allocated = (
            subject.stat(event, n) for n in (b"requested_bytes", b"allocation_bytes")
        )
        requested.int64_value = allocated.int64_value * 2


@damage
def requested_edited(subject: Subject) -> None:
    subject.alter(b"requested_bytes", subject.factor(), MEMORY[0])


@damage
def requested_bits_flipped(subject: Subject) -> None:
    subject.alter(b"requested_bytes", subject.flip(0, 40))


@damage
def allocated_edited(subject: Subject) -> None:
    subject.alter(b"allocation_bytes", subject.factor())


@damage
def allocated_bits_flipped(subject: Subject) -> None:
    subject.alter(b"allocation_bytes", subject.flip(8, 40))


@damage
def sizes_negative(subject: Subject) -> None:
    subject.alter(b"requested_bytes", lambda value: -value, MEMORY[0])


@damage
def sizes_zeroed(subject: Subject) -> None:
    subject.alter(b"requested_bytes", lambda value: 0, MEMORY[0])


@damage
def addresses_flipped(subject: Subject) -> None:
    subject.alter(b"addr", subject.flip(0, 47))


@damage
def addresses_of_allocations_flipped(subject: Subject) -> None:
    subject.alter(b"addr", subject.flip(8, 24), MEMORY[0])


@damage
def counter_edited(subject: Subject) -> None:
    subject.alter(b"bytes_allocated", subject.factor())


@damage
def counter_peak_edited(subject: Subject) -> None:
    subject.alter(b"peak_bytes_in_use", subject.factor())


@damage
def available_edited(subject: Subject) -> None:
    subject.alter(b"bytes_available", subject.factor())


@damage
def allocator_renamed(subject: Subject) -> None:
    key = subject.text(b"GPU_0_bfc")
    for _, event in subject.memory():
        subject.stat(event, b"allocator_name").ref_value = key


@damage
def shapes_edited(subject: Subject) -> None:
    key = subject.text(b"[3,1,4,15]")
    for _, event in subject.memory(MEMORY[0]):
        if (stat := subject.stat(event, b"shape")) is not None:
            stat.ref_value = key


@damage
def element_types_edited(subject: Subject) -> None:
    subject.alter(b"data_type", lambda value: subject.rng.randint(1, 23), MEMORY[0])


@damage
def run_ids_flipped(subject: Subject) -> None:
    subject.alter(b"id", subject.flip(0, 62))


@damage
def names_flipped(subject: Subject) -> None:
    for _, event in subject.memory(MEMORY[0]):
        if (stat := subject.stat(event, b"tf_op")) is not None:
            stat.ref_value ^= 1 << subject.rng.randint(0, 12)


@damage
def event_kinds_flipped(subject: Subject) -> None:
    for _, event in subject.memory():
        event.metadata_id ^= 1 << subject.rng.randint(0, 6)


@damage
def stat_kinds_flipped(subject: Subject) -> None:
    for _, event in subject.memory():
        subject.rng.choice(event.stats).metadata_id ^= 1 << subject.rng.randint(0, 4)


@damage
def statistics_lost(subject: Subject) -> None:
    for _, event in subject.memory():
        del event.stats[subject.rng.randrange(len(event.stats))]


@damage
def times_flipped(subject: Subject) -> None:
    for _, event in subject.memory():
        event.offset_ps ^= 1 << subject.rng.randint(20, 44)


@damage
def neighbours_swapped(subject: Subject) -> None:
    found = subject.events(*MEMORY)
    for at in subject.chosen(list(range(len(found) - 1))):
        (_, one), (_, two) = found[at], found[at + 1]
        one.offset_ps, two.offset_ps = two.offset_ps, one.offset_ps


@damage
def time_jumps(subject: Subject) -> None:
    line = subject.rng.choice([line for line, _ in subject.events(*MEMORY)])
    middle, jump = subject.middle(), int(10 ** subject.rng.uniform(6, 12))
    jump *= subject.rng.choice([-1, 1])
    for event in line.events:
        if subject.time(line, event) > middle:
            event.offset_ps += jump


@damage
def a_thread_shifted(subject: Subject) -> None:
    line = subject.rng.choice([line for line, _ in subject.events(*MEMORY)])
    line.timestamp_ns += int(10 ** subject.rng.uniform(3, 9)) * subject.rng.choice(
        [-1, 1]
    )


@damage
def a_thread_lost(subject: Subject) -> None:
    lines = {id(line): line for line, _ in subject.events(*MEMORY)}
    del subject.rng.choice(list(lines.values())).events[:]


@damage
def second_half_lost(subject: Subject) -> None:
    middle = subject.middle()
    subject.drop(
        [pair for pair in subject.events(*MEMORY) if subject.time(*pair) > middle]
    )


@damage
def second_half_lost_with_its_marks(subject: Subject) -> None:
    middle = subject.middle()
    for line in subject.plane.lines:
        subject.drop([(line, x) for x in line.events if subject.time(line, x) > middle])


@damage
def first_half_lost(subject: Subject) -> None:
    middle = subject.middle()
    subject.drop(
        [pair for pair in subject.events(*MEMORY) if subject.time(*pair) < middle]
    )


@damage
def a_stretch_lost(subject: Subject) -> None:
    found = subject.events(*MEMORY)
    count = max(1, round(subject.rate * len(found)))
    first = subject.rng.randrange(len(found) - count)
    subject.drop(found[first : first + count])


@damage
def a_step_lost(subject: Subject) -> None:
    line, step = subject.rng.choice(subject.steps())
    first = subject.time(line, step)
    last = first + step.duration_ps
    subject.drop(
        [p for p in subject.events(*MEMORY) if first <= subject.time(*p) <= last]
    )


@damage
def two_hosts_mixed(subject: Subject) -> None:
    planes = [plane for plane in subject.other.planes if plane.lines]
    start = min((x.timestamp_ns for x in subject.plane.lines if x.events), default=0)
    for plane in planes:
        added = subject.space.planes.add()
        added.CopyFrom(plane)
        added.name = b"/host:CPU"
        base = min(
            (line.timestamp_ns for line in plane.lines if line.events), default=0
        )
        for line in added.lines:
            line.timestamp_ns += start - base
    subject.space.hostnames.append(b"another")


@damage
def step_marks_inverted(subject: Subject) -> None:
    for _, event in subject.chosen(subject.steps()):
        event.duration_ps = -event.duration_ps


@damage
def step_marks_shifted(subject: Subject) -> None:
    for _, event in subject.chosen(subject.steps()):
        event.offset_ps += int(
            event.duration_ps * subject.rng.choice([-1.5, -0.5, -0.1, 0.1, 0.5, 1.5])
        )


@damage
def step_marks_shortened(subject: Subject) -> None:
    for _, event in subject.chosen(subject.steps()):
        event.duration_ps = int(
            event.duration_ps * subject.rng.choice([0, 0.1, 0.5, 0.9])
        )


@damage
def step_marks_lengthened(subject: Subject) -> None:
    for _, event in subject.chosen(subject.steps()):
        event.duration_ps = int(event.duration_ps * subject.rng.choice([1.5, 3, 100]))


@damage
def step_marks_lost(subject: Subject) -> None:
    subject.drop(subject.chosen(subject.steps()))


@damage
def step_marks_doubled(subject: Subject) -> None:
    for line, event in subject.chosen(subject.steps()):
        copy = line.events.add()
        copy.CopyFrom(event)
        copy.offset_ps += event.duration_ps // 2


@damage
def notes_of_the_capture_lost(subject: Subject) -> None:
    names = [name for name in subject.kinds if name.startswith(b"analyzer:")]
    subject.drop(subject.chosen(subject.events(*names)))


@damage
def notes_of_the_capture_shifted(subject: Subject) -> None:
    names = [name for name in subject.kinds if name.startswith(b"analyzer:")]
    for _, event in subject.chosen(subject.events(*names)):
        event.offset_ps += int(10 ** subject.rng.uniform(8, 12)) * subject.rng.choice(
            [-1, 1]
        )


@damage
def runs_of_ops_lost(subject: Subject) -> None:
    names = [
        name
        for name in subject.kinds
        if b":" in name and not name.startswith(b"analyzer:")
    ]
    subject.drop(subject.chosen(subject.events(*names)))
