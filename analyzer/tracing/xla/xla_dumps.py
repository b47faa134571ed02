"""Dumps of XLA: the flags that ask for them, the compiled modules and the buffers in them.

XLA reads ``XLA_FLAGS`` once, at the first compilation of a process. With ``--xla_dump_to=FOLDER`` it
writes each compiled module, its ``*buffer-assignment.txt`` and ``*memory-usage-report.txt``.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from analyzer.model.contract.reading import read_regular_file
from analyzer.model.errors import TraceError
from analyzer.model.units import format_bytes, parse_bytes

_COMPILED = "after_optimizations.hlo.pb"  # end of the name of a module with its plan

# A function's name in that of its module: "module_0007.a_inference_train_41__XlaMustCompile_true_...",
# or "module_0007.a_inference_train_41__.350...." if the op that calls it has no attributes.
_FUNCTION = re.compile(r"\.a_(\w+?)__(?:XlaMustCompile|\.)")


def read_flags(text: str) -> str:
    """Return the value of ``XLA_FLAGS`` as flags; without a leading dash it names a file of flags."""
    text = text.strip()
    if not text or text.startswith("-"):
        return text

    try:
        return " ".join(Path(text).read_text("utf-8").split())
    except (OSError, UnicodeDecodeError):
        return ""  # XLA ignores a missing file


def path_flag(flag: str, path: Path) -> str:
    """Return a flag with a path, quoted if XLA would split it at white space."""
    text = str(path)
    if not any(mark.isspace() or mark in "\"'\\" for mark in text):
        return f"{flag}={text}"

    return f'{flag}="' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def add_dump_flags(folder: Path, flags: str) -> str:
    """Return ``XLA_FLAGS`` that make XLA dump each compiled module and its plan into ``folder``."""
    ours = f"{path_flag('--xla_dump_to', folder)} --xla_dump_hlo_as_proto"
    return f"{read_flags(flags)} {ours}".strip()


def list_dumped_functions(dump: Path) -> list[str]:
    """Return the names of the functions whose compiled modules XLA dumped, each once."""
    files = " ".join(map(str, sorted(dump.glob(f"*{_COMPILED}"))))
    return [f"__{name}" for name in dict.fromkeys(_FUNCTION.findall(files))]


def read_dumped_plan(dump: Path, function: str) -> tuple[bytes, str, int]:
    """Return the last compiled module of a function, its device, and the number of its compilations.

    The device is ``cpu`` or ``gpu``. The module has its buffer assignment and no literals (HloProto).
    """
    from analyzer.tracing.parse.buffer_plan import HloProto

    name = function.strip("_")
    files = sorted(dump.glob(f"*.a_{name}__*{_COMPILED}"))  # oldest first

    # "sm_7.5_gpu_after_optimizations" (``GpuCompiler``), "cpu_after_optimizations" (``CpuCompiler``)
    platform = "gpu" if "gpu_after_optimizations" in files[-1].name else "cpu"
    module = HloProto.FromString(files[-1].read_bytes())
    module.DiscardUnknownFields()  # above all, the values of constants

    return module.SerializeToString(deterministic=True), platform, len(files)


_TOTAL = re.compile(r"^Total bytes(?: used)?: (\d+)", re.MULTILINE)
_ALLOCATION = re.compile(
    r"^allocation (\d+): size ([\d.]+)([KMGT]?i?B)?, (.+):$",
    re.MULTILINE,
)
_VALUE = re.compile(
    r"^ value: <\d+ (\S+) @\d+> \(size=(\d+),offset=\d+\): (\S+)$",
    re.MULTILINE,
)
_KINDS = {
    "parameter": "parameters",
    "constant": "constants",
    "thread-local": "thread-local",
    "maybe-live-out": "results",
}
_MOST_ROWS = 12
_Rows = list[tuple[int, str, str]]  # bytes, name, and shape or kind


def describe_assignment(path: Path) -> list[str]:
    """Return the total, the kinds and the largest buffers as lines, or raise a TraceError."""
    try:
        text = read_regular_file(path).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read: {error}.") from None

    total = _TOTAL.search(text)
    if total is None:
        raise TraceError(
            f"{path} has no total of XLA's buffers.",
            "Dump the module again.",
        )

    sums: Counter[str] = Counter()
    allocations: _Rows = []

    for number, size, unit, facts in _ALLOCATION.findall(text):
        kinds = (name for mark, name in _KINDS.items() if mark in facts)
        kind = next(kinds, "temporaries")
        size_bytes = parse_bytes(f"{size}{unit or 'B'}")
        allocations.append((size_bytes, f"allocation {number}", kind))
        sums[kind] += size_bytes

    values = [(int(size), name, shape) for name, size, shape in _VALUE.findall(text)]

    return list(_describe(int(total[1]), sums, values, allocations))


def _describe(
    total_bytes: int,
    sums: Counter[str],
    values: _Rows,
    allocations: _Rows,
) -> Iterator[str]:
    """Yield the total with its kinds, and the largest values, or allocations without values."""
    parts = [f"{kind} {format_bytes(size)}" for kind, size in sums.most_common()]
    yield f"XLA assigns {format_bytes(total_bytes)} to this module: {', '.join(parts)}."

    what = "values" if values else "allocations"
    rows = sorted(values or allocations, key=lambda row: -row[0])
    yield (
        f"Largest of {len(rows)} {what}; values at different times share the bytes of "
        "the temporaries."
    )

    for size, name, shape in rows[:_MOST_ROWS]:
        yield f"{format_bytes(size):>10}  {shape}  {name}"
