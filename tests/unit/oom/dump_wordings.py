"""One state of an allocator, written in the words of each release of TensorFlow.

The formats are those of ``bfc_allocator.cc`` and ``op_kernel.h``. Sizes are printed by TensorFlow's own
rule, so digits are lost where TensorFlow loses them.
"""

import math
from dataclasses import dataclass

VERSIONS = ("2.4", "2.9", "2.12", "2.21")
DEVICE = "/job:localhost/replica:0/task:0/device:GPU:0"
HINT = (
    "If the cause is memory fragmentation maybe the environment variable "
    "'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation. "
)
FOLLOWS = "Current allocation summary follows."


def print_size(size_bytes: int) -> str:
    """Return a size as TensorFlow's ``HumanReadableNumBytes`` prints it (``numbers.cc``)."""
    if size_bytes < 0:
        return f"-{print_size(-size_bytes)}"
    if size_bytes < 1024:
        return f"{size_bytes}B"
    size, unit = size_bytes, 0
    while size >= 1024 * 1024 and unit < 5:
        size //= 1024
        unit += 1
    decimals = 2 if unit else 1
    return f"{size / 1024:.{decimals}f}{'KMGTPE'[unit]}iB"


@dataclass(frozen=True)
class Scene:
    """A pool when a request for 4-byte floats of ``shape`` failed.

    A region is a list of chunks: (bytes, bytes requested, or None for a free chunk).
    """

    regions: tuple[tuple[tuple[int, int | None], ...], ...]
    shape: tuple[int, ...]
    limit: int
    op: str = "block/conv1/Conv2D"
    allocator: str = "GPU_0_bfc"

    @property
    def chunks(self) -> list[tuple[int, int | None]]:
        return [chunk for region in self.regions for chunk in region]

    @property
    def asked(self) -> int:
        return 4 * math.prod(self.shape)

    @property
    def rounded(self) -> int:
        return (self.asked + 255) // 256 * 256

    @property
    def pool(self) -> int:
        return sum(size for size, _ in self.chunks)

    @property
    def in_use(self) -> int:
        return sum(size for size, asked in self.chunks if asked is not None)

    @property
    def waste(self) -> int:
        return sum(size - asked for size, asked in self.chunks if asked is not None)

    @property
    def largest_hole(self) -> int:
        return max((size for size, asked in self.chunks if asked is None), default=0)


MIB = 1 << 20
PIECES = Scene(
    regions=(
        (
            (1280, 1000),
            (3 * MIB, 3 * MIB),
            (3 * MIB, None),
            *(((2 * MIB + 256), 2 * MIB - 77), (5 * MIB + 512, None)) * 6,
            (64 * MIB, 64 * MIB),
        ),
        ((16 * MIB, 12 * MIB), (7 * MIB, None)),
    ),
    shape=(16, 225, 225, 3),
    limit=128 * MIB + 771,
)
"""A pool of two regions with 40 MiB free and no hole over 7 MiB, for a request of 9.27 MiB; the limit
leaves less than that."""
FULL = Scene(
    regions=(
        (
            (1280, 1024),
            (90 * MIB, 90 * MIB),
            (100 * MIB - 1280, 80 * MIB),
            (10 * MIB, None),
        ),
    ),
    shape=(128, 225, 225, 3),
    limit=200 * MIB,
)


def log_of(
    scene: Scene, version: str, *, with_text: bool = True, level: str = "I"
) -> str:
    """Return the log of one failure in the words of a release; level W leaves out the dump."""
    start = f"Allocator ({scene.allocator}) ran out of memory trying to allocate "
    start += f"{print_size(scene.asked)} (rounded to {scene.rounded})requested by op {scene.op}"
    lines = [("W", "bfc_allocator.cc:267", f"{start}\n{HINT}\n{FOLLOWS}\n{FOLLOWS}")]
    if level == "I":
        lines += [("I", "bfc_allocator.cc:643", row) for row in _dump(scene, version)]
    lines.append(("W", "bfc_allocator.cc:277", _map(scene)))
    if with_text:
        status = "Resource exhausted" if version == "2.4" else "RESOURCE_EXHAUSTED"
        kernel = (
            f"OP_REQUIRES failed at conv_ops.cc:446 : {status}: {_error_text(scene)}"
        )
        lines.append(("W", "op_kernel.cc:1192", kernel))
    text = "".join(
        _with_prefix(number, line, version) for number, line in enumerate(lines)
    )
    return text + (_traceback(scene, version) if with_text else "")


def _dump(scene: Scene, version: str) -> list[str]:
    rows = [f"BFCAllocator dump for {scene.allocator}"]
    rows += [_bin(scene, power) for power in range(21)]
    rows.append(f"Bin for {print_size(scene.asked)} was 256.00MiB, Chunk State: ")
    for number, region in enumerate(scene.regions):
        address = 0x7F0000000000 + (number << 36)
        rows.append(f"Next region of size {sum(size for size, _ in region)}")
        for size, asked in region:
            word = "Free " if asked is None else "InUse"
            rows.append(
                f"{word} at {address:x} of size {size} next 18446744073709551615"
            )
            address += size
    rows.append("     Summary of in-use Chunks by size: ")
    used = [size for size, asked in scene.chunks if asked is not None]
    for size in sorted(set(used)):
        count = used.count(size)
        rows.append(
            f"{count} Chunks of size {size} totalling {print_size(size * count)}"
        )
    rows.append(f"Sum Total of in-use chunks: {print_size(scene.in_use)}")
    return [*rows, _pool(scene, version), "Stats: \n" + _stats(scene, version)]


def _bin(scene: Scene, power: int) -> str:
    least = 256 << power
    most = least * 2 if power < 20 else scene.pool + 1
    inside = [chunk for chunk in scene.chunks if least <= chunk[0] < most]
    used = [chunk for chunk in inside if chunk[1] is not None]
    return (
        f"Bin ({least}): \tTotal Chunks: {len(inside)}, Chunks in use: {len(used)}. "
        f"{print_size(sum(size for size, _ in inside))} allocated for chunks. "
        f"{print_size(sum(size for size, _ in used))} in use in bin. "
        f"{print_size(sum(asked or 0 for _, asked in used))} client-requested in use in bin."
    )


def _pool(scene: Scene, version: str) -> str:
    show = print_size if version == "2.21" else str
    sizes = (scene.pool, scene.limit, scene.limit - scene.pool, 2 * scene.pool)
    pool, limit, left, following = map(show, sizes)
    name, unit = "Total bytes in pool", "bytes"
    if version in ("2.4", "2.9"):
        name = "total_region_allocated_bytes_"
    elif version == "2.21":
        name, unit = "Total size in pool", "size"
    return (
        f"{name}: {pool} memory_limit_: {limit} available {unit}: {left} "
        f"curr_region_allocation_bytes_: {following}"
    )


def _stats(scene: Scene, version: str) -> str:
    show = print_size if version == "2.21" else str
    rows = {
        "Limit": show(scene.limit),
        "InUse": show(scene.in_use),
        "MaxInUse": show(scene.in_use),
    }
    rows |= {"NumAllocs": "4321", "MaxAllocSize": show(scene.in_use // 2)}
    if version != "2.4":
        rows |= dict.fromkeys(("Reserved", "PeakReserved", "LargestFreeBlock"), show(0))
    return "".join(
        f"{name}:{value:>{30 - len(name)}}\n" for name, value in rows.items()
    )


def _map(scene: Scene) -> str:
    """Return the pool as 100 marks, each for the byte at its start."""
    cells = []
    for place in range(0, scene.pool, scene.pool // 99):
        offset = 0
        for size, asked in scene.chunks:
            if offset <= place < offset + size:
                cells.append("_" if asked is None else "*")
            offset += size
    return "".join(cells)[:100]


def _error_text(scene: Scene) -> str:
    axes = ",".join(map(str, scene.shape))
    place = f"on {DEVICE} by allocator {scene.allocator}"
    return f"OOM when allocating tensor with shape[{axes}] and type float {place}"


def _traceback(scene: Scene, version: str) -> str:
    node = f"[[{{{{node {scene.op}}}}}]]"
    if version == "2.4":
        node = f"[[node {scene.op} (defined at train.py:42) ]]"
    error = f"ResourceExhaustedError: {_error_text(scene)}\n\t {node}\n"
    return (
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 42, in <module>\n    model.fit(data)\n'
        f"tensorflow.python.framework.errors_impl.{error}\t [[Adam/update/_12]]\n\n"
        f"During handling of the above exception, another exception occurred:\n\n{error}"
    )


def _with_prefix(number: int, line: tuple[str, str, str], version: str) -> str:
    level, source, text = line
    if version == "2.21":
        return f"{level}0000 00:00:1795324024.{number:06} 77 {source}] {text}\n"
    folder = (
        "tensorflow/core" if version in ("2.4", "2.9") else "external/local_tsl/tsl"
    )
    return f"2026-11-22 05:08:25.{number:06}: {level} {folder}/{source}] {text}\n"
