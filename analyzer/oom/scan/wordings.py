"""How TensorFlow, XLA, CUDA's driver and the system word what concerns memory, 0.8 to today.

Nothing here depends on where in a line the words stand, so that a prefix of any launcher does no
harm, and nothing on the line number of a source file, which changes with every release.
"""

from __future__ import annotations

import re
from typing import Any, Final

from analyzer.oom.amounts import SIZE


class Wording:
    """A pattern, which is tried on texts alone that have one of the words that it cannot do without.

    Args:
        pattern: A regular expression; ``SIZE`` in it is an amount as TensorFlow prints one, captured.
        words: One of them stands in every text that the pattern fits; none where that cannot be told.
    """

    __slots__ = ("_pattern", "_words")

    def __init__(self, pattern: str, *words: str) -> None:
        self._pattern = re.compile(pattern.replace("SIZE", f"({SIZE})"))
        self._words = words or ("",)

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first place that fits, None where there is none."""
        for word in self._words:
            if word in text:
                return self._pattern.search(text)
        return None

    def match(self, text: str) -> re.Match[str] | None:
        """Return whether the text's start fits."""
        for word in self._words:
            if word in text:
                return self._pattern.match(text)
        return None

    def findall(self, text: str) -> list[Any]:
        """Return what each place that fits captures."""
        for word in self._words:
            if word in text:
                return self._pattern.findall(text)
        return []


# --- the allocator's own line (bfc_allocator.cc) -------------------------------------------------
FAILED: Final = Wording(
    r"(?:Allocator \(([^)]*)\) )ran out of memory trying to allocate SIZE"
    r"(?:\.?\s*\(rounded to (\d+)\))?(?:\s*requested by op ?([^\x22]*))?",
    "ran out of memory",
)
FAILED_OLD: Final = Wording(
    r"Ran out of memory trying to allocate SIZE\.\s+(?:See logs|The caller)", "Ran out of memory"
)
FAILED_EIGEN: Final = (
    Wording(  # gpu_device.cc, to 1.x: a kernel's scratch, after which the process ends
        r"EigenAllocator for GPU ran out of memory when allocating (\d+)", "EigenAllocator"
    )
)
NOT_A_FAILURE: Final = Wording(r"not a failure|freed_by_count=")

# --- the dump ------------------------------------------------------------------------------------
DUMP_HEAD: Final = Wording(r"BFCAllocator dump for (\S+)", "dump for")
BIN: Final = Wording(
    r"Bin \((\d+)\):\s+Total Chunks: (\d+), Chunks in use: (\d+)(\.?) SIZE allocated for chunks\. "
    r"(?:SIZE client-requested for chunks\. )?SIZE in use in bin\. SIZE client-requested in use in bin",
    "Total Chunks:",
)
WANTED_BIN: Final = Wording(r"Bin for SIZE was SIZE, Chunk State", "Chunk State")
CHUNK_STATE: Final = Wording(r"^\W*Size: SIZE \| Requested Size: SIZE \| in_use: ([01])", "in_use:")
REGION: Final = Wording(r"Next region of size (\d+)", "Next region")
PIECE: Final = Wording(
    r"(?<![A-Za-z])(Chunk|InUse|Free) +at (?:0x)?([0-9A-Fa-f]{1,16})(?: next \d+)? of size (\d+)",
    " of size ",
)
CENSUS_HEAD: Final = Wording(r"Summary of in-use Chunks by size", "Summary of")
CENSUS: Final = Wording(r"(?<![\d.])(\d+) Chunks of size (\d+) totalling", "Chunks of size")
CENSUS_SUM: Final = Wording(r"Sum Total of in-use chunks: SIZE", "Sum Total")
POOL: Final = Wording(
    r"(?:total_region_allocated_bytes_|Total bytes in pool|Total size in pool): SIZE "
    r"memory_limit_: SIZE available (?:bytes|size): SIZE curr_region_allocation_bytes_:",
    "memory_limit_",
)
POOL_2026: Final = Wording(r"Allocator memory summary:(.*)", "memory summary")
PART_2026: Final = Wording(
    r"(rounded request|total free in pool|largest free chunk[\w ]*|unallocated bytes|pool size"
    r"|pool limit):? SIZE"
)
STAT: Final = Wording(
    r"(?<![A-Za-z])(Limit|InUse|MaxInUse|NumAllocs|MaxAllocSize|Reserved|PeakReserved"
    r"|LargestFreeBlock):\s+SIZE",
    "Limit:",
    "InUse:",
    "NumAllocs:",
    "MaxAllocSize:",
    "Reserved:",
    "LargestFreeBlock:",
)
LIMIT_LINE: Final = Wording(r"^\W*Limit:\s+SIZE\s*$", "Limit:")
STATS_LINE: Final = Wording(
    r"^\W*(?:InUse|MaxInUse|NumAllocs|MaxAllocSize):\s+SIZE\s*$",
    "InUse:",
    "NumAllocs:",
    "MaxAllocSize:",
)
MAP: Final = Wording(r"(?<![*x_])([*x_]{100})(?![*x_])")

# --- the text of the error -----------------------------------------------------------------------
OLD_SHAPE: Final = re.compile(r"shape ?(?:dim \{ size: \d+ \} ?)+")
OLD_AXIS: Final = re.compile(r"size: (\d+)")
NO_ROOM_FOR_TENSOR: Final = Wording(
    r"OOM when allocating (temporary )?tensor(?:s? of| with) ?shape ?\[([\d,\s]*)\]"
    r"(?: and type (\w+))?(?: on (\S+))?(?: by allocator (\S+))?",
    "OOM when",
)
NO_ROOM_FOR_MODULE: Final = Wording(
    r"(?:Out of memory (?:while trying to allocate|allocating)|Failed to allocate request for) SIZE"
    r"(?: bytes)?(?: ?\((\d+) ?B\))?",
    "Out of memory",
    "Failed to allocate request",
)
NO_ROOM: Final = Wording(
    r"(?:RESOURCE_EXHAUSTED|Resource exhausted|ResourceExhaustedError):.{0,200}?"
    r"(?:failed to allocate memory|Failed to allocate memory|OOM when)"
)
NO_HBM: Final = Wording(
    r"Ran out of memory in memory space \w+\.\s.{0,200}?Used SIZE of SIZE", "Ran out of memory in"
)
NO_HBM_LEFT: Final = Wording(
    r"Attempting to reserve SIZE at the bottom of memory\. That was not possible\. "
    r"There are SIZE free, SIZE reserved, and SIZE reservable",
    "Attempting to reserve",
)
NO_SCRATCH: Final = Wording(r"Failed to allocate scratch buffer for device (\d+)", "scratch buffer")
NO_ALGORITHM: Final = Wording(r"No algorithm worked!", "No algorithm")
AUTOTUNING: Final = Wording(
    r'Autotuning failed for HLO: .{0,4000}?op_name="([^"]+)"', "Autotuning failed"
)
AUTOTUNED_TYPE: Final = Wording(r'op_type="(\w+)"')
NOT_COPIED: Final = Wording(
    r"Dst tensor is not initialized|Failed copying input tensor from \S+ to (\S+) in order to run",
    "Dst tensor",
    "Failed copying",
)
NO_MEMORY_MEANT: Final = Wording(
    r"No space left on device|message larger than max|[Qq]uota|Too many open files|Stream removed"
)
KERNEL: Final = Wording(r"OP_REQUIRES failed at (\S+:\d+)", "OP_REQUIRES")
NODE: Final = Wording(
    r"\[\[(?:\{\{function_node [^}]*\}\})?\{\{node ([^}]+)\}\}(?: = (\w+))?"
    r"|\[\[Node: (\S+) = (\w+)\["
    r"|\[\[node ([^\s\]]+)(?:\s+\(?defined at (?:<ipython[^>]*>|(\S+?:\d+)))?",
    "[[{{",
    "[[Node",
    "[[node",
)
DETECTED_AT: Final = Wording(r"Detected at node '?([^' ]+)'? defined at", "Detected at")
NODE_LINE: Final = Wording(r"^\s*Node: '?([^'\s]+)'?\s*$", "Node:")
CAUSED_BY: Final = Wording(r"Caused by op u?'([^']+)', defined at", "Caused by")
NODE_DTYPE: Final = Wording(r"\bT=DT_(\w+)", "DT_")
EAGER_OP: Final = Wording(r"\[Op:(\w+)\]", "[Op:")
WRAPPED_OP: Final = Wording(  # _N_2: how long a list of inputs is
    r"\{\{function_node __wrapped__(\w+?)(?:_[A-Za-z][A-Za-z_]*_\d+)*_device_(\S*?)\}\}",
    "__wrapped__",
)
FRAME: Final = Wording(r'^\W*File "([^"]+)", line (\d+)', 'File "')
USAGE_HEAD: Final = Wording(r"Current usage from device: (\S+), allocator: (\S+)", "Current usage")
USAGE: Final = Wording(r"^\W*SIZE from (\S+)$")

# --- XLA's buffers -------------------------------------------------------------------------------
XLA_HEAD: Final = Wording(r"BufferAssignment OOM Debugging", "OOM Debugging")
XLA_STAT: Final = Wording(
    r"(?<![A-Za-z])(parameter|constant|maybe_live_out|preallocated temp|total) allocation:\s+SIZE"
    r"|(?<![A-Za-z])((?:preallocated temp|total) fragmentation):\s+SIZE",
    "allocation:",
    "fragmentation:",
)
XLA_BUFFER: Final = Wording(r"^\W*Buffer (\d+):\s*$", "Buffer ")
XLA_FIELD: Final = Wording(
    r"(?<![A-Za-z])(Size|Operator|XLA Label|Shape|Entry Parameter Subshape): ?(.*)"
)
XLA_OP: Final = Wording(r'op_name="([^"]*)"')
BUDGET: Final = Wording(
    r"Can't reduce memory use below [^(]*\((-?\d+) bytes\) by rematerialization; "
    r"only reduced to [^(]*\((\d+) bytes\)",
    "rematerialization",
)

# --- the asynchronous allocator ------------------------------------------------------------------
ASYNC: Final = Wording(
    r"(?:([\w.-]{1,200}) )?cuMemAllocAsync failed to allocate (\d+)", "cuMemAllocAsync failed"
)
CARD_FREE: Final = Wording(r"Free memory/Total memory: (\d+)/(\d+)", "Free memory/")
HISTOGRAM: Final = Wording(r"Histogram of current allocation", "Histogram of")
HISTOGRAM_ROW: Final = Wording(r"^\s*(\d+), (\d+)\s*$", ", ")

# --- the driver and the libraries ----------------------------------------------------------------
REFUSED: Final = Wording(
    r"failed to alloc(?:ate)? (?:\S+ \((\d+) bytes\) from device:|(\d+) bytes unified memory; result:)"
    r" (.*)",
    "failed to alloc",
)
HOST_REFUSED: Final = Wording(r"failed to alloc (\d+) bytes on host: (.*)", "failed to alloc")
PINNED: Final = Wording(r"could not allocate pinned host memory of size: (\d+)", "pinned")
LIBRARY: Final = Wording(
    r"([Cc]ould not create cudnn handle: \S+|[Ff]ailed to create cublas handle: .{0,80}"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED"
    r"|CUFFT_ALLOC_FAILED"
    r"|(?:initialization on GPU:\d+ failed\. Status: out of memory)"
    r"|cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY.{0,80}"
    r"|failed to create (?:context|stream).{0,40}CUDA_ERROR_OUT_OF_MEMORY.{0,40}"
    r"|DNN library initialization failed.{0,80})",
    "ould not create cudnn",
    "ailed to create",
    "_ALLOC_FAILED",
    "Status: out of memory",
    "OUT_OF_MEMORY",
    "DNN library",
)

# --- the host ------------------------------------------------------------------------------------
KILLED_BY_SYSTEM: Final = Wording(
    r"(Memory cgroup out of memory|Out of memory): Kill(?:ed)? process (\d+) \(([^)]*)\)"
    r"(?:.*?total-vm:(\d+)kB)?(?:.*?anon-rss:(\d+)kB)?",
    "ut of memory: Kill",
)
OOM_KILLED: Final = Wording(
    r"OOMKilled|oom[_-]kill(?:ed|er)?[ :=]|exceeded memory limit|oom_reaper",
    "OOMKilled",
    "oom",
    "exceeded memory limit",
)
KILLED: Final = Wording(
    r"^\W*(?:\S+: line \d+: +\d+ )?Killed\b(?!: \d+)|signal 9 \(Killed\)|SIGKILL"
    r"|(?:exit code|exited with code|returned|status):? (?:137|-9)\b",
    "Killed",
    "SIGKILL",
    " 137",
    " -9",
)
BAD_ALLOC: Final = Wording(r"std::bad_alloc|terminate called.*bad_alloc", "bad_alloc")
NUMPY: Final = Wording(
    r"Unable to allocate (?:array with shape|\S+ \w+ for an array with shape) \(([\d, ]*)\)"
    r" and data type (\w+)",
    "Unable to allocate",
)
PYTHON: Final = Wording(r"^\W*MemoryError\b(.*)", "MemoryError")
LARGE_HOST: Final = Wording(
    r"Allocation of (\d+) exceeds \d+% of (?:free )?system memory", "system memory"
)

# --- the cards -----------------------------------------------------------------------------------
CREATED: Final = Wording(
    r"Created (?:TensorFlow )?device \(?/(?:job:\S*?/)?(?:device:)?[gG][pP][uU]:(\d+) "
    r"with (\d+) MB memory\)?:?.*?(?:\(|-> )device: (\d+), name: ([^,]+)",
    "MB memory",
)
CREATED_OLD: Final = Wording(
    r"Creating TensorFlow device \(/gpu:(\d+)\) -> \(device: \d+, name: ([^,]+)",
    "Creating TensorFlow device",
)
FOUND_CARD: Final = Wording(r"Found device (\d+) with properties", "Found device")
CARD_NAME: Final = Wording(
    r"(?<![A-Za-z])name: (\S.*?)(?: major: \d+.*|, pci.*| computeCapability.*)?$", "name: "
)
CARD_SIZE: Final = Wording(
    r"(?:[tT]otal ?[mM]emory|deviceMemorySize): ?SIZE",
    "otal memory",
    "otal Memory",
    "otalMemory",
    "deviceMemorySize",
)
CARD_LEFT: Final = Wording(r"[fF]ree ?[mM]emory: ?SIZE", "ree memory", "ree Memory", "reeMemory")
