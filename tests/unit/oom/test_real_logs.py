"""Real failures of TensorFlow; the figures are worked out here from the lines that it wrote."""

import gzip
import math
import re
from pathlib import Path

import pytest

from analyzer.model.contract.oom_file import OomDocument
from analyzer.oom import read_oom_log

LOGS = Path(__file__).parent / "logs"
MIB = 1 << 20
BATCH_MEAN = "gradient_tape/sequential_1/global_average_pooling2d_1/Tile"
EMBED_OPS = (
    "adam/UnsortedSegmentSum_1",
    "StatefulPartitionedCall/adam/AssignAddVariableOp",
)
CONV = "sequential_1/conv2d_1_2"

# limit in MiB as it was set (0: not set), then the cause and the op of each failure
EXPECTED: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "cpu_frag": (200, "fragmented", ("Fill",)),
    "gpu_conv": (1024, "full", (BATCH_MEAN,)),
    "gpu_embed": (1500, "full", EMBED_OPS),
    "gpu_xla": (1024, "full", (f"{CONV}/convolution",) * 2),
    "gpu_data": (300, "wasted-in-chunks", ("",)),
    "gpu_growth": (0, "fragmented", ("",)),
    "gpu_growth_eager": (0, "full", ("",)),
    "gpu_refused_growth": (0, "driver-refused", ("",)),
    "gpu_full": (0, "held-by-others", ("",)),
    "gpu_async": (0, "full", ("",)),
    "gpu_async_conv": (0, "full", ("",)),
    "gpu_two": (0, "cannot-tell", (f"{CONV}/Relu", f"replica_1/{CONV}/Relu")),
    "gpu_engines": (0, "cannot-tell", ("cnn_1/conv2d_1/Relu",)),
}
UNDUMPED = ("gpu_async", "gpu_async_conv", "gpu_two", "gpu_engines")
DUMPED = [name for name in EXPECTED if name not in UNDUMPED]


def read(name: str) -> OomDocument:
    with (LOGS / f"{name}.log.gz").open("rb") as stream:
        return read_oom_log(stream, name).report


def text_of(name: str) -> str:
    return gzip.decompress((LOGS / f"{name}.log.gz").read_bytes()).decode()


@pytest.mark.parametrize("name", EXPECTED)
def test_each_failure_counts_once_and_has_its_cause(name: str) -> None:
    limit_mib, cause, ops = EXPECTED[name]
    failures = read(name).failures
    assert len(failures) == len(ops)
    for failure, op in zip(failures, ops, strict=True):
        assert failure.verdict.id == cause
        assert op in ("", failure.op)
        assert limit_mib * MIB in (0, failure.limit_bytes)
        has_hint = any(
            "cuda_malloc_async" in remedy.action for remedy in failure.remedies
        )
        assert has_hint == (cause == "fragmented" and name != "cpu_frag")


def test_the_least_workspace_of_all_algorithms_is_the_request() -> None:
    printed = re.findall(r"engine eng\d.* allocate ([\d.]+)MiB", text_of("gpu_engines"))
    (failure,) = read("gpu_engines").failures
    least = min(map(float, printed)) * MIB
    assert failure.asked.low_bytes <= least <= failure.asked.high_bytes


@pytest.mark.parametrize("name", DUMPED)
def test_figures_are_those_of_the_first_dump(name: str) -> None:
    dump = text_of(name).partition("BFCAllocator dump for")[2].partition("] Stats:")[0]
    used = [int(size) for size in re.findall(r"\] InUse at \w+ of size (\d+)", dump)]
    free = [int(size) for size in re.findall(r"\] Free  at \w+ of size (\d+)", dump)]
    regions = [int(size) for size in re.findall(r"Next region of size (\d+)", dump)]
    failure = read(name).failures[0]
    assert failure.in_use_bytes == sum(used)
    assert failure.free_bytes == sum(free)
    assert failure.largest_hole_bytes == max(free, default=0)
    assert failure.pool_bytes == sum(regions) == sum(used) + sum(free)
    assert failure.regions == len(regions)
    listed = re.findall(r"\] (\d+) Chunks of size (\d+) totalling", dump)
    counts = {row.size_bytes: row.count for row in failure.sizes}
    assert counts == {int(size): int(count) for count, size in listed}


@pytest.mark.parametrize(
    "name", ["cpu_frag", "gpu_conv", "gpu_embed", "gpu_growth", "gpu_full"]
)
def test_the_request_is_exact(name: str) -> None:
    text = text_of(name)
    shape, dtype = re.findall(r"shape\[([\d,]+)\] and type (\w+)", text)[0]
    asked = read(name).failures[0].asked
    assert asked.is_exact
    item_bytes = {"float": 4, "uint8": 1}[dtype]
    assert asked.requested_bytes == math.prod(map(int, shape.split(","))) * item_bytes
    assert asked.rounded_bytes == int(re.findall(r"rounded to (\d+)\)", text)[0])


def test_the_asynchronous_allocators_histogram_is_what_is_in_use() -> None:
    rows = re.findall(r"\] (\d+), (\d+)\n", text_of("gpu_async"))
    (failure,) = read("gpu_async").failures
    assert failure.in_use_bytes == sum(int(size) * int(count) for size, count in rows)
    assert failure.asked.requested_bytes == 4 * MIB
    assert (failure.card.free_bytes, failure.card.total_bytes) == (0, 1500 * MIB)


def test_warnings_are_no_failures_and_refusals_are_runs() -> None:
    assert "not a failure" in text_of("gpu_conv")
    assert not read("gpu_conv").notes  # a request of the same allocator failed
    refused = re.findall(r"\((\d+) bytes\) from dev", text_of("gpu_refused_growth"))
    document = read("gpu_refused_growth")
    assert sum(run.times for run in document.refusals) == len(refused)
    assert max(run.first_bytes for run in document.refusals) == max(map(int, refused))
    assert any("refused" in reason for reason in document.failures[0].verdict.reasons)


@pytest.mark.parametrize(
    ("name", "word", "is_given"),
    [
        ("cpu_frag", "memory growth off", False),  # the host's allocator always grows
        ("gpu_growth", "memory growth off", True),
        ("gpu_growth_eager", "a list", True),
    ],
)
def test_advice_depends_on_the_pool(name: str, word: str, is_given: bool) -> None:
    actions = [remedy.action for remedy in read(name).failures[0].remedies]
    assert any(word in action for action in actions) == is_given
