"""Real failures of TensorFlow, the figures worked out here by hand from the lines it wrote."""

from __future__ import annotations

import gzip
import math
import re
from pathlib import Path

import pytest

from analyzer.model.contract.report.oom_file import OomFailure
from analyzer.oom import OomReport, read_oom_log

LOGS = Path(__file__).parent / "logs"
MIB = 1 << 20


def report(name: str) -> OomReport:
    path = LOGS / f"{name}.log.gz"
    with path.open("rb") as stream:
        return read_oom_log(stream, name)


def text_of(name: str) -> str:
    return gzip.decompress((LOGS / f"{name}.log.gz").read_bytes()).decode()


def first(name: str) -> OomFailure:
    return report(name).document.failures[0]


DUMPED = (
    "cpu_frag",
    "gpu_conv",
    "gpu_embed",
    "gpu_xla",
    "gpu_data",
    "gpu_growth",
    "gpu_growth_eager",
    "gpu_refused_growth",
    "gpu_full",
)


@pytest.mark.parametrize("name", DUMPED)
def test_figures_are_those_of_the_first_dump(name: str) -> None:
    dump = text_of(name).partition("BFCAllocator dump for")[2].partition("] Stats:")[0]
    used = [int(size) for size in re.findall(r"\] InUse at \w+ of size (\d+)", dump)]
    free = [int(size) for size in re.findall(r"\] Free  at \w+ of size (\d+)", dump)]
    regions = [int(size) for size in re.findall(r"Next region of size (\d+)", dump)]
    failure = first(name)
    assert failure.in_use_bytes == sum(used)
    assert failure.free_bytes == sum(free)
    assert failure.largest_hole_bytes == max(free, default=0)
    assert failure.pool_bytes == sum(regions) == sum(used) + sum(free)
    assert failure.regions == len(regions)
    assert failure.holes == len(free)


@pytest.mark.parametrize("name", ["cpu_frag", "gpu_conv", "gpu_embed", "gpu_growth", "gpu_full"])
def test_what_was_asked_is_exact(name: str) -> None:
    text = text_of(name)
    shape, dtype = re.findall(r"shape\[([\d,]+)\] and type (\w+)", text)[0]
    rounded = int(re.findall(r"rounded to (\d+)\)", text)[0])
    asked = first(name).asked
    assert asked is not None
    size = math.prod(map(int, shape.split(","))) * {"float": 4, "uint8": 1}[dtype]
    assert asked.requested_bytes == size
    assert asked.rounded_bytes == rounded
    assert asked.is_exact


LIMITS = {"cpu_frag": 200, "gpu_conv": 1024, "gpu_xla": 1024, "gpu_embed": 1500, "gpu_data": 300}


@pytest.mark.parametrize(("name", "limit_mib"), LIMITS.items())
def test_the_limit_is_the_one_that_was_set(name: str, limit_mib: int) -> None:
    assert first(name).limit_bytes == limit_mib * MIB


@pytest.mark.parametrize(
    ("name", "verdicts"),
    {
        "cpu_frag": ["fragmented"],
        "gpu_conv": ["full"],
        "gpu_embed": ["full", "full"],
        "gpu_xla": ["full", "full"],
        "gpu_data": ["wasted-in-chunks"],
        "gpu_growth": ["fragmented"],
        "gpu_growth_eager": ["full"],
        "gpu_refused_growth": ["driver-refused"],
        "gpu_full": ["larger-than-limit"],
        "gpu_async": ["full"],
        "gpu_async_conv": ["full"],
        "gpu_two": ["cannot-tell", "cannot-tell"],
    }.items(),
)
def test_each_failure_counts_once_and_has_its_verdict(name: str, verdicts: list[str]) -> None:
    assert [failure.verdict.id for failure in report(name).document.failures] == verdicts


def test_ops_are_those_that_failed() -> None:
    assert first("gpu_conv").op == "gradient_tape/sequential_1/global_average_pooling2d_1/Tile"
    segments, assign = report("gpu_embed").document.failures
    assert segments.op == "adam/UnsortedSegmentSum_1"
    assert assign.op == "StatefulPartitionedCall/adam/AssignAddVariableOp"
    assert first("gpu_xla").op == "sequential_1/conv2d_1_2/convolution"
    assert first("cpu_frag").op == "Fill"
    nodes = [failure.op for failure in report("gpu_two").document.failures]
    assert nodes == [
        "sequential_1/conv2d_1_2/Relu",
        "replica_1/sequential_1/conv2d_1_2/Relu",
    ]


def test_the_asynchronous_allocators_histogram_is_what_is_in_use() -> None:
    rows = re.findall(r"\] (\d+), (\d+)\n", text_of("gpu_async"))
    failure = first("gpu_async")
    assert failure.in_use_bytes == sum(int(size) * int(count) for size, count in rows)
    assert failure.asked is not None
    assert failure.asked.requested_bytes == 4 * MIB
    assert failure.card is not None
    assert (failure.card.free_bytes, failure.card.total_bytes) == (0, 1500 * MIB)


def test_warnings_are_no_failures() -> None:
    document = report("gpu_conv").document
    assert [(each.allocator, each.times) for each in document.survived] == [("GPU_0_bfc", 1)]
    assert len(document.failures) == 1


def test_the_drivers_refusals_are_runs() -> None:
    document = report("gpu_refused_growth").document
    sizes = [
        int(size) for size in re.findall(r"\((\d+) bytes\) from dev", text_of("gpu_refused_growth"))
    ]
    assert sum(run.times for run in document.refusals) == len(sizes)
    assert max(run.first_bytes for run in document.refusals) == max(sizes)
    assert any("refused" in reason for reason in document.failures[0].verdict.reasons)


def test_cuda_malloc_async_is_named_only_where_pieces_are_what_failed() -> None:
    for name in (*DUMPED, "gpu_async", "gpu_async_conv", "gpu_two"):
        for failure in report(name).document.failures:
            is_named = any("cuda_malloc_async" in each.action for each in failure.remedies)
            is_card = (failure.allocator or "").startswith("GPU")
            assert is_named == (failure.verdict.id == "fragmented" and is_card), name


def test_growth_is_advised_against_only_where_it_can_be_chosen() -> None:
    """The allocators of the machine's own memory always grow."""
    for name, is_told in (("cpu_frag", False), ("gpu_growth", True)):
        actions = [remedy.action for remedy in first(name).remedies]
        assert any("memory growth off" in action for action in actions) == is_told


def test_many_of_one_size_are_told_as_a_story() -> None:
    failure = first("gpu_growth_eager")
    counts = {row.size_bytes: row.count for row in failure.sizes}
    listed = re.findall(r"(\d+) Chunks of size (\d+) totalling", text_of("gpu_growth_eager"))
    assert counts == {int(size): int(count) for count, size in listed}
    assert any("142 chunks of the requested size" in story for story in failure.stories)
    assert any("list" in remedy.action for remedy in failure.remedies)
