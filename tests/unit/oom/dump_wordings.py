"""One state of an allocator, written down as each version of TensorFlow words it.

The formats are those of ``bfc_allocator.cc`` and ``op_kernel.h`` of each release; sizes that a
release prints for people are printed by its own rule, so that digits are lost where they are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

UNITS = "KMGTPE"
VERSIONS = ("0.8", "1.1", "1.4", "1.6", "1.12", "1.15", "2.1", "2.2", "2.4", "2.9", "2.12", "2.21")


def print_size(size_bytes: int) -> str:
    """Return a size as TensorFlow's ``HumanReadableNumBytes`` prints it (``numbers.cc``).

    All digits below 1 KiB, one decimal for KiB, two from MiB up. The value is divided by 1024 without
    remainder until it is below 1024 * 1024 units.
    """
    sign, size = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    if size < 1024:
        return f"{sign}{size}B"
    unit = 0
    while size >= 1024 * 1024 and unit + 1 < len(UNITS):
        size //= 1024
        unit += 1
    return f"{sign}{size / 1024:.{1 if unit == 0 else 2}f}{UNITS[unit]}iB"


@dataclass(frozen=True)
class Scene:
    """A pool when a request failed.

    Attributes:
        regions: For each region its chunks in order: (bytes, bytes asked for or None where free).
        shape: Of the tensor that was asked for, of 4-byte floats.
        limit: The pool's limit.
    """

    regions: tuple[tuple[tuple[int, int | None], ...], ...]
    shape: tuple[int, ...]
    limit: int
    op: str = "block/conv1/Conv2D"
    allocator: str = "GPU_0_bfc"
    device: str = "/job:localhost/replica:0/task:0/device:GPU:0"
    allocations: int = 4321
    peak: int | None = None
    extra: list[str] = field(default_factory=list)

    @property
    def asked(self) -> int:
        size = 4
        for axis in self.shape:
            size *= axis
        return size

    @property
    def rounded(self) -> int:
        return (self.asked + 255) // 256 * 256

    @property
    def pool(self) -> int:
        return sum(size for region in self.regions for size, _ in region)

    @property
    def in_use(self) -> int:
        return sum(size for region in self.regions for size, asked in region if asked is not None)

    @property
    def largest_hole(self) -> int:
        free = [size for region in self.regions for size, asked in region if asked is None]
        return max(free, default=0)


def log_of(scene: Scene, version: str, *, with_text: bool = True, level: str = "I") -> str:
    """Return the log of one failure in the words of a version; without the dump where ``level`` is W."""
    place = VERSIONS.index(version)
    head = _failure_line(scene, place)
    dump = _dump(scene, place) if level == "I" else []
    map_line = ("W", "core/common_runtime/bfc_allocator.cc:277", _map(scene))
    lines = [*dump, map_line, head] if place < 1 else [head, *dump, map_line]
    if with_text:
        lines.append(("W", "core/framework/op_kernel.cc:1192", _kernel_text(scene, place)))
    text = "".join(_prefixed(number, line, place) for number, line in enumerate(lines))
    return text + (_traceback(scene, place) if with_text else "")


def _failure_line(scene: Scene, place: int) -> tuple[str, str, str]:
    size = print_size(scene.asked)
    source = "core/common_runtime/bfc_allocator.cc:267"
    if place < 1:
        return (
            "W",
            source,
            f"Ran out of memory trying to allocate {size}.  See logs for memory state.",
        )
    start = f"Allocator ({scene.allocator}) ran out of memory trying to allocate {size}"
    follows = "Current allocation summary follows."
    if place < VERSIONS.index("1.15"):
        return "W", source, f"{start}.  {follows}"
    start += f" (rounded to {scene.rounded})"
    if place < VERSIONS.index("2.2"):
        return "W", source, f"{start}.  {follows}"
    if place < VERSIONS.index("2.4"):
        return "W", source, f"{start}\n{follows}"
    hint = (
        "If the cause is memory fragmentation maybe the environment variable "
        "'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation. "
    )
    return "W", source, f"{start}requested by op {scene.op}\n{hint}\n{follows}\n{follows}"


def _dump(scene: Scene, place: int) -> list[tuple[str, str, str]]:
    rows = []
    if place >= VERSIONS.index("2.1"):
        rows.append(f"BFCAllocator dump for {scene.allocator}")
    rows += _bins(scene, place)
    rows.append(f"Bin for {print_size(scene.asked)} was 256.00MiB, Chunk State: ")
    rows += _pieces(scene, place)
    rows.append("     Summary of in-use Chunks by size: ")
    census: dict[int, int] = {}
    for region in scene.regions:
        for size, asked in region:
            if asked is not None:
                census[size] = census.get(size, 0) + 1
    for size, count in sorted(census.items()):
        rows.append(f"{count} Chunks of size {size} totalling {print_size(size * count)}")
    rows.append(f"Sum Total of in-use chunks: {print_size(scene.in_use)}")
    rows += _pool(scene, place)
    rows.append("Stats: \n" + _stats(scene, place))
    return [("I", "core/common_runtime/bfc_allocator.cc:643", row) for row in rows]


def _bins(scene: Scene, place: int) -> list[str]:
    rows = []
    for power in range(21):
        least = 256 << power
        inside = [
            (size, asked)
            for region in scene.regions
            for size, asked in region
            if (size >= least or power == 0) and (size < 2 * least or power == 20)
        ]
        free = [size for size, asked in inside if asked is None]
        used = [(size, asked) for size, asked in inside if asked is not None]
        if place < VERSIONS.index("1.4"):
            total = print_size(sum(free))
            rows.append(
                f"Bin ({least}): \tTotal Chunks: {len(free)}, Chunks in use: 0 {total} allocated for "
                f"chunks. {total} client-requested for chunks. 0B in use in bin. 0B client-requested in "
                "use in bin."
            )
        else:
            rows.append(
                f"Bin ({least}): \tTotal Chunks: {len(inside)}, Chunks in use: {len(used)}. "
                f"{print_size(sum(size for size, _ in inside))} allocated for chunks. "
                f"{print_size(sum(size for size, _ in used))} in use in bin. "
                f"{print_size(sum(asked for _, asked in used))} client-requested in use in bin."
            )
    return rows


def _pieces(scene: Scene, place: int) -> list[str]:
    used_rows, free_rows, rows = [], [], []
    for number, region in enumerate(scene.regions):
        address = 0x7F0000000000 + (number << 36)
        total = sum(size for size, _ in region)
        if place >= VERSIONS.index("1.15"):
            rows.append(f"Next region of size {total}")
        for size, asked in region:
            row = _piece(address, size, asked is not None, place)
            (used_rows if asked is not None else free_rows).append(row)
            rows.append(row)
            address += size
    return [*used_rows, *free_rows] if place < VERSIONS.index("1.6") else rows


def _piece(address: int, size: int, is_used: bool, place: int) -> str:
    if place < VERSIONS.index("1.6"):
        return f"{'Chunk' if is_used else 'Free'} at {address:#x} of size {size}"
    if place < VERSIONS.index("1.15"):
        return f"{'Chunk' if is_used else 'Free '} at {address:#x} of size {size}"
    word = "InUse" if is_used else "Free "
    if place < VERSIONS.index("2.1"):
        return f"{word} at {address:#x} next 7 of size {size}"
    return f"{word} at {address:x} of size {size} next 18446744073709551615"


def _pool(scene: Scene, place: int) -> list[str]:
    if place < VERSIONS.index("1.15"):
        return []
    left, following = scene.limit - scene.pool, 2 * scene.pool
    if place < VERSIONS.index("2.12"):
        name = "total_region_allocated_bytes_"
    elif place < VERSIONS.index("2.21"):
        name = "Total bytes in pool"
    else:
        return [
            f"Total size in pool: {print_size(scene.pool)} memory_limit_: {print_size(scene.limit)} "
            f"available size: {print_size(left)} curr_region_allocation_bytes_: {print_size(following)}"
        ]
    return [
        f"{name}: {scene.pool} memory_limit_: {scene.limit} available bytes: {left} "
        f"curr_region_allocation_bytes_: {following}"
    ]


def _stats(scene: Scene, place: int) -> str:
    show = print_size if VERSIONS[place] == "2.21" else str
    peak = scene.in_use if scene.peak is None else scene.peak
    rows = [("Limit", show(scene.limit)), ("InUse", show(scene.in_use)), ("MaxInUse", show(peak))]
    rows += [("NumAllocs", str(scene.allocations)), ("MaxAllocSize", show(scene.in_use // 2))]
    if place >= VERSIONS.index("2.9"):
        rows += [("Reserved", show(0)), ("PeakReserved", show(0)), ("LargestFreeBlock", show(0))]
    return "".join(f"{name}:{value:>{30 - len(name)}}\n" for name, value in rows)


def _map(scene: Scene) -> str:
    cells = ["_"] * 100
    offset = 0
    for region in scene.regions:
        for size, asked in region:
            if asked is not None:
                for taken, mark in ((size, "x"), (asked, "*")):
                    first = offset * 100 // scene.pool
                    last = max((offset + taken) * 100 // scene.pool, first + 1)
                    cells[first:last] = mark * (min(last, 100) - first)
            offset += size
    return "".join(cells)[:100]


def _kernel_text(scene: Scene, place: int) -> str:
    axes = ",".join(map(str, scene.shape))
    text = f"OOM when allocating tensor with shape[{axes}]"
    if place >= VERSIONS.index("1.6"):
        text += f" and type float on {scene.device} by allocator {scene.allocator}"
    status = "Resource exhausted: " if place < VERSIONS.index("2.9") else "RESOURCE_EXHAUSTED: "
    start = "OP_REQUIRES failed at conv_ops.cc:446 : " if place >= VERSIONS.index("1.6") else ""
    return start + status + text


def _traceback(scene: Scene, place: int) -> str:
    text = _kernel_text(scene, place).split(": ")[-1]
    if place < VERSIONS.index("1.12"):
        node = (
            f"[[Node: {scene.op} = Conv2D[T=DT_FLOAT, strides=[1, 4, 4, 1]](input, kernel/read)]]"
        )
    elif place < VERSIONS.index("1.15"):
        node = f"[[node {scene.op} (defined at train.py:42) ]]"
    else:
        node = f"[[{{{{node {scene.op}}}}}]]"
    other = "[[Node: pool5/_1 = _Recv[client_terminated=false]()]]"
    return (
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 42, in <module>\n    session.run(step)\n'
        f"tensorflow.python.framework.errors_impl.ResourceExhaustedError: {text}\n\t {node}\n"
        f"\t {other}\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        f"ResourceExhaustedError (see above for traceback): {text}\n\t {node}\n"
    )


def _prefixed(number: int, line: tuple[str, str, str], place: int) -> str:
    level, source, text = line
    if place < 1:
        return f"{level} tensorflow/{source}] {text}\n"
    if VERSIONS[place] == "2.21":
        return f"{level}0000 00:00:1795324024.{number:06} 77 {source.rpartition('/')[2]}] {text}\n"
    folder = "tensorflow/" if place < VERSIONS.index("2.12") else "external/local_tsl/"
    return f"2026-11-22 05:08:25.{number:06}: {level} {folder}{source}] {text}\n"
