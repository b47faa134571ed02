"""How TensorFlow, XLA, CUDA's driver and the system word what concerns memory, 0.8 to today.

Nothing here depends on where in a line the words stand, so that a prefix of any launcher does no
harm, and nothing on the line number of a source file, which changes with every release.
"""

from __future__ import annotations

import re
from typing import Final

from analyzer.oomlog.amounts import SIZE

_S: Final = SIZE


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("SIZE", f"({_S})"))


# --- the allocator's own line (bfc_allocator.cc) -------------------------------------------------
FAILED: Final = _words(
    r"(?:Allocator \(([^)]*)\) )ran out of memory trying to allocate SIZE"
    r"(?:\.?\s*\(rounded to (\d+)\))?(?:\s*requested by op ?(.*))?"
)
FAILED_OLD: Final = _words(r"Ran out of memory trying to allocate SIZE\.\s+(?:See logs|The caller)")
NOT_A_FAILURE: Final = re.compile(r"not a failure|freed_by_count=")
REQUESTED_BY: Final = re.compile(r"^\s*requested by op ?(.*)")
GARBAGE: Final = re.compile(r"Garbage collection: deallocate free memory regions")
GROWTH_FORCED: Final = re.compile(
    r"(?:Overriding|TF_FORCE_GPU_ALLOW_GROWTH).*TF_FORCE_GPU_ALLOW_GROWTH environment variable is set"
    r"(?!.*to false)"
)

# --- the dump ------------------------------------------------------------------------------------
DUMP_HEAD: Final = re.compile(r"BFCAllocator dump for (\S+)")
BIN: Final = _words(
    r"Bin \((\d+)\):\s+Total Chunks: (\d+), Chunks in use: (\d+)(\.?) SIZE allocated for chunks\. "
    r"(?:SIZE client-requested for chunks\. )?SIZE in use in bin\. SIZE client-requested in use in bin"
)
WANTED_BIN: Final = _words(r"Bin for SIZE was SIZE, Chunk State")
CHUNK_STATE: Final = _words(r"^\W*Size: SIZE \| Requested Size: SIZE \| in_use: ([01])")
REGION: Final = re.compile(r"Next region of size (\d+)")
PIECE: Final = re.compile(
    r"(?<![A-Za-z])(Chunk|InUse|Free) +at (?:0x)?([0-9A-Fa-f]{1,16})(?: next \d+)? of size (\d+)"
)
CENSUS_HEAD: Final = re.compile(r"Summary of in-use Chunks by size")
CENSUS: Final = re.compile(r"(?<![\d.])(\d+) Chunks of size (\d+) totalling")
CENSUS_SUM: Final = _words(r"Sum Total of in-use chunks: SIZE")
POOL: Final = _words(
    r"(?:total_region_allocated_bytes_|Total bytes in pool|Total size in pool): SIZE "
    r"memory_limit_: SIZE available (?:bytes|size): SIZE curr_region_allocation_bytes_: SIZE"
)
POOL_2026: Final = re.compile(r"Allocator memory summary:(.*)")
PART_2026: Final = _words(
    r"(rounded request|total free in pool|largest free chunk[\w ]*|unallocated bytes|pool size"
    r"|pool limit):? SIZE"
)
STAT: Final = _words(
    r"(?<![A-Za-z])(Limit|InUse|MaxInUse|NumAllocs|MaxAllocSize|Reserved|PeakReserved"
    r"|LargestFreeBlock):\s+SIZE"
)
LIMIT_LINE: Final = _words(r"^\W*Limit:\s+SIZE\s*$")
STATS_LINE: Final = _words(r"^\W*(?:InUse|MaxInUse|NumAllocs|MaxAllocSize):\s+SIZE\s*$")
MAP: Final = re.compile(r"(?<![*x_])([*x_]{100})(?![*x_])")

# --- the text of the error -----------------------------------------------------------------------
NO_ROOM_FOR_TENSOR: Final = re.compile(
    r"OOM when allocating (temporary )?tensor(?:s? of| with) ?shape ?\[([\d,\s]*)\]"
    r"(?: and type (\w+))?(?: on (\S+))?(?: by allocator (\S+))?"
)
NO_ROOM_FOR_MODULE: Final = _words(
    r"(?:Out of memory (?:while trying to allocate|allocating)|Failed to allocate request for) SIZE"
    r"(?: bytes)?(?: ?\((\d+) ?B\))?"
)
NO_ROOM: Final = re.compile(
    r"(?:RESOURCE_EXHAUSTED|Resource exhausted|ResourceExhaustedError):.{0,200}?"
    r"(?:failed to allocate memory|Failed to allocate memory|OOM when)"
)
NO_HBM: Final = _words(r"Ran out of memory in memory space \w+\.\s.{0,200}?Used SIZE of SIZE")
NO_HBM_LEFT: Final = _words(
    r"Attempting to reserve SIZE at the bottom of memory\. That was not possible\. "
    r"There are SIZE free, SIZE reserved, and SIZE reservable"
)
NO_SCRATCH: Final = re.compile(r"Failed to allocate scratch buffer for device (\d+)")
NO_ALGORITHM: Final = re.compile(r"No algorithm worked!")
AUTOTUNING: Final = re.compile(r'Autotuning failed for HLO: .{0,4000}?op_name="([^"]+)"')
AUTOTUNED_TYPE: Final = re.compile(r'op_type="(\w+)"')
NOT_COPIED: Final = re.compile(
    r"Dst tensor is not initialized|Failed copying input tensor from \S+ to (\S+) in order to run"
)
NO_MEMORY_MEANT: Final = re.compile(
    r"No space left on device|message larger than max|[Qq]uota|Too many open files|Stream removed"
)
KERNEL: Final = re.compile(r"OP_REQUIRES failed at (\S+:\d+)")
NODE: Final = re.compile(
    r"\[\[(?:\{\{function_node [^}]*\}\})?\{\{node ([^}]+)\}\}(?: = (\w+))?"
    r"|\[\[Node: (\S+) = (\w+)\["
    r"|\[\[node ([^\s\]]+)(?:\s+\(?defined at (?:<ipython[^>]*>|(\S+?:\d+)))?"
)
DETECTED_AT: Final = re.compile(r"Detected at node '?([^' ]+)'? defined at")
NODE_LINE: Final = re.compile(r"^\s*Node: '?([^'\s]+)'?\s*$")
CAUSED_BY: Final = re.compile(r"Caused by op u?'([^']+)', defined at")
NODE_DTYPE: Final = re.compile(r"\bT=DT_(\w+)")
EAGER_OP: Final = re.compile(r"\[Op:(\w+)\]")
WRAPPED_OP: Final = re.compile(r"\{\{function_node __wrapped__(\w+?)_device_(\S*?)\}\}")
FRAME: Final = re.compile(r'^\W*File "([^"]+)", line (\d+)')
USAGE_HEAD: Final = re.compile(r"Current usage from device: (\S+), allocator: (\S+)")
USAGE: Final = _words(r"^\W*SIZE from (\S+)$")

# --- XLA's buffers -------------------------------------------------------------------------------
XLA_HEAD: Final = re.compile(r"BufferAssignment OOM Debugging")
XLA_STAT: Final = _words(
    r"(?<![A-Za-z])(parameter|constant|maybe_live_out|preallocated temp|total) allocation:\s+SIZE"
    r"|(?<![A-Za-z])((?:preallocated temp|total) fragmentation):\s+SIZE"
)
XLA_BUFFER: Final = re.compile(r"^\W*Buffer (\d+):\s*$")
XLA_FIELD: Final = re.compile(
    r"(?<![A-Za-z])(Size|Operator|XLA Label|Shape|Entry Parameter Subshape): ?(.*)"
)
XLA_OP: Final = re.compile(r'op_name="([^"]*)"')
BUDGET: Final = re.compile(
    r"Can't reduce memory use below [^(]*\((-?\d+) bytes\) by rematerialization; "
    r"only reduced to [^(]*\((\d+) bytes\)"
)

# --- the asynchronous allocator ------------------------------------------------------------------
ASYNC: Final = re.compile(r"(?:(\S+) )?cuMemAllocAsync failed to allocate (\d+)")
CARD_FREE: Final = re.compile(r"Free memory/Total memory: (\d+)/(\d+)")
HISTOGRAM: Final = re.compile(r"Histogram of current allocation")
HISTOGRAM_ROW: Final = re.compile(r"^\s*(\d+), (\d+)\s*$")

# --- the driver and the libraries ----------------------------------------------------------------
REFUSED: Final = re.compile(r"failed to allocate \S+ \((\d+) bytes\) from device: (.*)")
HOST_REFUSED: Final = re.compile(r"failed to alloc (\d+) bytes on host: (.*)")
PINNED: Final = re.compile(r"could not allocate pinned host memory of size: (\d+)")
LIBRARY: Final = re.compile(
    r"([Cc]ould not create cudnn handle: \S+|[Ff]ailed to create cublas handle: .{0,80}"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED"
    r"|CUFFT_ALLOC_FAILED"
    r"|(?:initialization on GPU:\d+ failed\. Status: out of memory)"
    r"|cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY.{0,80}"
    r"|failed to create (?:context|stream).{0,40}CUDA_ERROR_OUT_OF_MEMORY.{0,40}"
    r"|DNN library initialization failed.{0,80})"
)

# --- the host ------------------------------------------------------------------------------------
KILLED_BY_SYSTEM: Final = re.compile(
    r"(Memory cgroup out of memory|Out of memory): Kill(?:ed)? process (\d+) \(([^)]*)\)"
    r"(?:.*?total-vm:(\d+)kB)?(?:.*?anon-rss:(\d+)kB)?"
)
OOM_KILLED: Final = re.compile(
    r"OOMKilled|oom[_-]kill(?:ed|er)?[ :=]|exceeded memory limit|oom_reaper"
)
KILLED: Final = re.compile(
    r"^\W*(?:\S+: line \d+: +\d+ )?Killed\b(?!: \d+)|signal 9 \(Killed\)|SIGKILL"
    r"|(?:exit code|exited with code|returned|status):? (?:137|-9)\b"
)
BAD_ALLOC: Final = re.compile(r"std::bad_alloc|terminate called.*bad_alloc")
NUMPY: Final = re.compile(
    r"Unable to allocate (?:array with shape|\S+ \w+ for an array with shape) \(([\d, ]*)\)"
    r" and data type (\w+)"
)
PYTHON: Final = re.compile(r"^\W*MemoryError\b(.*)")
LARGE_HOST: Final = re.compile(r"Allocation of (\d+) exceeds \d+% of (?:free )?system memory")

# --- the cards -----------------------------------------------------------------------------------
CREATED: Final = re.compile(
    r"Created (?:TensorFlow )?device \(?/(?:job:\S*?/)?(?:device:)?[gG][pP][uU]:(\d+) "
    r"with (\d+) MB memory\)?:?.*?(?:\(|-> )device: (\d+), name: ([^,]+)"
)
CREATED_OLD: Final = re.compile(
    r"Creating TensorFlow device \(/gpu:(\d+)\) -> \(device: \d+, name: ([^,]+)"
)
FOUND_CARD: Final = re.compile(r"Found device (\d+) with properties")
CARD_NAME: Final = re.compile(
    r"(?<![A-Za-z])name: (\S.*?)(?: major: \d+.*|, pci.*| computeCapability.*)?$"
)
CARD_SIZE: Final = _words(r"(?:[tT]otal ?[mM]emory|deviceMemorySize): ?SIZE")
CARD_LEFT: Final = _words(r"[fF]ree ?[mM]emory: ?SIZE")
