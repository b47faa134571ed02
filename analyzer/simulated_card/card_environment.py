"""The environment of a process with simulated cards: its variables, and the folder of its libraries.

The folder lies in the user's cache, one for each TensorFlow and each core: the core library (compiled
from ``native/``), a library with every other function name that TensorFlow looks up (written here as
ELF, without a compiler: System V ABI with its AMD64 supplement, and the layouts in ``elf.h``), and links
to the latter under the names of CUDA's libraries. Its subfolder ``cuda`` stands for CUDA's toolkit: XLA
finds ``ptxas``, ``nvlink`` and ``libdevice.10.bc`` there.
"""

import hashlib
import importlib.util
import mmap
import os
import platform
import re
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from analyzer.cards.catalogue import Gpu, check_limit, find_gpu, memory_limit
from analyzer.model.contract.child_messages import (
    ASSUMPTIONS,
    BATCH_NORM_RESERVE,
    CONTEXT,
    PRODUCT_WORKSPACE,
    RECURRENT_RESERVE,
    WORKSPACE,
    CaptureOptions,
)
from analyzer.model.errors import InputError
from analyzer.model.machine import cache_folder, count_cores
from analyzer.simulate.kernels.cudnn_algorithms import CUDNN_MAJOR
from analyzer.simulated_card.core_build import CORE, NATIVE, build, find_compiler
from analyzer.tracing.xla.xla_dumps import path_flag, read_flags

_MOST_CARDS = 16
SHORT_POOL = "SIMULATED_CARD_POOL_MOST"

# XLA compares sizes that only a run knows (``dynamic_padder.cc``); no kernel computes the result.
_WITHOUT_CHECKS = "--xla_gpu_shape_checks=IGNORE"

# Threads for parallel ops. A machine with a card has more cores than many others; with two threads,
# fewer orders of ops occur.
_FEWEST_THREADS = 8

# assumed: the catalogue has only bandwidths; the clock follows from both
_BUS_BITS = 256


# Memory of a simulated card for a step that does not fit the real one. Its pool grows on demand.
_UNLIMITED_BYTES = 1 << 40

# Free memory of a larger simulated card, until a step needs more. TensorFlow's allocator keeps 8
# bytes of host memory for each 256 of its pool (``AllocationRegion`` in bfc_allocator.h): 4.4 GiB for
# an H200. The size of the pool changes no address, because the allocator takes the smallest chunk
# that fits.
SHORT_BYTES = 16 << 30


def check_platform() -> None:
    """Raise InputError if this machine cannot run simulated cards."""
    machine = platform.machine().lower()
    if sys.platform != "linux" or machine not in ("x86_64", "amd64"):
        raise InputError(
            f"Simulated cards need Linux on x86-64, and this is {sys.platform} on {machine}.",
            hint="analyze estimate --gpu NAME predicts here.",
        )


def check_simulated_card() -> None:
    """Raise InputError if no step can run on a simulated card with this machine and TensorFlow."""
    check_platform()
    with TemporaryDirectory() as own:
        make_library_folder((cache_folder() or Path(own)) / "simulated_card")


def list_cards(text: str) -> tuple[Gpu, ...]:
    """Return the cards of ``t4``, ``t4,a100`` or ``2xt4``, or raise an InputError."""
    cards: list[Gpu] = []
    for part in map(str.strip, text.split(",")):
        if not part:
            raise InputError(
                f"--gpu {text} has an empty name.",
                hint="Write it as t4,a100.",
            )

        count, _, name = part.partition("x")
        if count.strip().isdecimal() and name:
            cards += [find_gpu(name)] * int(count)
        else:
            cards.append(find_gpu(part))

    if not 1 <= len(cards) <= _MOST_CARDS:
        raise InputError(
            f"--gpu {text} names {len(cards)} cards.",
            hint=f"Name 1 to {_MOST_CARDS}.",
        )

    return tuple(cards)


def parse_cards(text: str) -> tuple[Gpu, ...]:
    """Return the cards of a text that can be simulated, or raise an InputError."""
    cards = list_cards(text)
    for card in cards:
        if card.is_amd:
            raise InputError(
                f"Simulated cards are NVIDIA's, and {card.name} is not.",
                hint="`analyze estimate --gpu NAME` predicts for it.",
            )

    return cards


def normalize_cards(text: str) -> str:
    """Return the ids of one card or several, or raise an InputError."""
    return ",".join(card.id for card in list_cards(text))


def find_smallest_card(text: str) -> Gpu:
    """Return the card with the least memory of the named ones, or raise an InputError."""
    return min(list_cards(text), key=lambda card: memory_limit(card).bytes)


def make_card_environment(options: CaptureOptions, cache: Path) -> dict[str, str]:
    """Return the variables of a child process that sees the simulated cards ``options.gpu``.

    InputError if this machine cannot run simulated cards, or if they are smaller than the limit.
    """
    check_platform()
    assumed = {one.name: options.assume.get(one.name, one.usual) for one in ASSUMPTIONS}
    context_bytes = assumed[CONTEXT.name]
    cards = []

    for gpu in parse_cards(options.gpu):
        check_limit(gpu, options.memory_limit_bytes, context_bytes)
        room_bytes = _UNLIMITED_BYTES if options.is_unlimited else gpu.memory_bytes
        cards.append(encode_card(gpu, room_bytes, context_bytes))

    own = os.environ
    folder = make_library_folder(cache / "simulated_card")
    toolkit = folder / TOOLKIT
    data_dir = path_flag("--xla_gpu_cuda_data_dir", toolkit)
    flags = (read_flags(own.get("XLA_FLAGS", "")), data_dir, _WITHOUT_CHECKS)
    threads = max(count_cores(), _FEWEST_THREADS)

    variables = {
        "LD_LIBRARY_PATH": _join_path(folder, own.get("LD_LIBRARY_PATH", "")),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(cards)))),
        "SIMULATED_CARDS": ";".join(cards),
        "SIMULATED_CARD_PRODUCT_WORKSPACE": str(assumed[PRODUCT_WORKSPACE.name]),
        "SIMULATED_CARD_RECURRENT_RESERVE": str(assumed[RECURRENT_RESERVE.name]),
        "SIMULATED_CARD_BATCH_NORM_RESERVE": str(assumed[BATCH_NORM_RESERVE.name]),
        "TF_NUM_INTEROP_THREADS": own.get("TF_NUM_INTEROP_THREADS", str(threads)),
        # XLA compiles on many threads, each of which would keep free memory of its own.
        "MALLOC_ARENA_MAX": own.get("MALLOC_ARENA_MAX", "2"),
        "XLA_FLAGS": " ".join(filter(None, flags)),
        # Before other folders with ptxas: cuDNN's trials op by op do not read XLA_FLAGS.
        "PATH": _join_path(toolkit / "bin", own.get("PATH", "")),
    }

    if WORKSPACE.name in options.assume:
        workspace_bytes = options.assume[WORKSPACE.name]
        variables["SIMULATED_CARD_CONVOLUTION_WORKSPACE"] = str(workspace_bytes)

    if options.has_short_pool:
        variables[SHORT_POOL] = str(SHORT_BYTES)

    return variables


def _join_path(first: Path, rest: str) -> str:
    """Return a search path without empty entries, which would stand for the working folder."""
    return os.pathsep.join([str(first), *filter(None, rest.split(os.pathsep))])


def encode_card(gpu: Gpu, room_bytes: int, context_bytes: int) -> str:
    """Return a card in the format that ``native/runtime/cards.c`` reads.

    A process may take ``room_bytes``; XLA plans for the memory of the card itself.
    """
    memory_khz = round(gpu.bandwidth_bytes_s * 8 / (2 * _BUS_BITS) / 1000)

    figures = (
        gpu.name.replace(",", " ").replace(";", " "),
        *gpu.compute_capability,
        gpu.sm_count,
        round(gpu.clock_mhz * 1000),
        memory_khz,
        _BUS_BITS,
        gpu.l2_bytes // 1024,
        gpu.max_threads,
        gpu.max_blocks,
        gpu.shared_bytes // 1024,
        gpu.block_optin_bytes // 1024,
        gpu.memory_bytes,
        room_bytes,
        min(context_bytes, room_bytes),
    )

    return ",".join(map(str, figures))


NAMES = "libsimulated_card_names.so"
NOTE = "README"
TOOLKIT = "cuda"
_TOOLS = ("ptxas", "nvlink", "fatbinary")
_STAND_INS = Path(__file__).with_name("cuda_tools")
_NOTE_TEXT = """\
Libraries of tf-memory-analyzer's simulated card. Processes started by `analyze trace --gpu NAME` load
them instead of CUDA's; they compute nothing. Made for {tensorflow}. Safe to delete at any time.
"""

# Libraries that TensorFlow opens, of CUDA 12 and 13 with cuDNN 9.
SONAMES = Path(__file__).with_name("library_names.txt").read_text("utf-8").split()

# Names between zeros, as a library's table of exports and tables of text hold them
_NAMES = re.compile(
    rb"\0((?:__cuda|cu[A-Z]|cuda[A-Z]|cublas|cudnn|cufft|cusolver|cusparse|curand|nccl|nvml|cupti)\w+)(?=\0)"
)
_CUSOLVER_NAMES = re.compile(rb"\0(cusolver(?:Dn|Sp|Get|Create)\w+)(?=\0)")
_FRAMEWORK = "libtensorflow_framework.so.2"
_LIBRARY = "libtensorflow_cc.so.2"
_PREDICT = "analyze estimate --gpu NAME predicts with any."


def make_library_folder(cache: Path) -> Path:
    """Return the folder for the installed TensorFlow below ``cache``, made at first use.

    An InputError says that TensorFlow is absent, without CUDA or for an older cuDNN, or no compiler.
    """
    tensorflow = find_tensorflow()
    file = tensorflow / "python/platform/build_info.py"

    text = ""
    if file.is_file():
        text = file.read_text(encoding="utf-8")

    found = re.search(r"'cudnn_version', '(\d+)", text)

    # TensorFlow 2.17 is built for 8, 2.18 for 9
    if found and int(found[1]) < CUDNN_MAJOR:
        raise InputError(
            f"Simulated cards need TensorFlow 2.18 or newer: the installed one uses cuDNN {found[1]}.",
            hint=f"pip install -U tensorflow; {_PREDICT}",
        )

    core = find_core(cache)
    digest = hashlib.sha256(core.read_bytes() + ",".join(SONAMES).encode())

    for file in sorted(_STAND_INS.iterdir()):
        digest.update(file.read_bytes())

    for path in list_binaries(tensorflow):
        status = path.stat()
        digest.update(f"{path}:{status.st_size}:{status.st_mtime_ns};".encode())

    folder = cache / f"lib-{digest.hexdigest()[:16]}"
    if not (folder / NOTE).is_file():
        _fill_folder(folder, tensorflow, core)

    return folder


def find_tensorflow() -> Path:
    """Return the folder of TensorFlow's Linux wheel without importing it, or raise InputError."""
    spec = importlib.util.find_spec("tensorflow")
    places = spec.submodule_search_locations if spec else None

    for place in places or ():
        if all(path.is_file() for path in list_binaries(Path(place))):
            return Path(place)

    raise InputError(
        "Simulated cards need TensorFlow's Linux wheel, and its libraries are not installed.",
        hint=f"pip install tensorflow; {_PREDICT}",
    )


def find_core(cache: Path) -> Path:
    """Return the wheel's core library, else one compiled below ``cache``, once for each source."""
    packaged = NATIVE / CORE
    if packaged.is_file():
        return packaged

    sources = b"".join(path.read_bytes() for path in sorted(NATIVE.rglob("*.[ch]")))

    core = cache / f"core-{hashlib.sha256(sources).hexdigest()[:16]}" / CORE
    if core.is_file():
        return core

    compiler = find_compiler()
    if compiler is None:
        raise InputError(
            "This installation has no simulated card, and no compiler to make it.",
            hint="Install a C compiler, or: pip install ziglang.",
        )

    try:
        build(core, compiler)
    except OSError as error:
        raise InputError(
            f"The simulated card cannot be compiled: {error}",
            hint="Name another compiler with the environment variable CC.",
        ) from None

    return core


def find_cuda_names(tensorflow: Path) -> set[bytes]:
    """Return the CUDA functions that TensorFlow looks up; none if it was built without CUDA.

    TensorFlow's lazy loaders (``tsl/cuda/*_stub.cc``) export a function of each name; cuSOLVER's names
    are a table of text. A missing name is an error, and a further one is harmless.
    """
    names = find_names(tensorflow / _FRAMEWORK, _NAMES)
    if names:
        names |= find_names(tensorflow / _LIBRARY, _CUSOLVER_NAMES)

    return names


def find_names(library: Path, pattern: re.Pattern[bytes] = _NAMES) -> set[bytes]:
    """Return the names of functions in a library's bytes."""
    with library.open("rb") as file:
        # Without ``with``: after Ctrl-C the search still holds the map, which cannot be closed.
        data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    return {match[1] for match in pattern.finditer(data)}


def list_binaries(tensorflow: Path) -> tuple[Path, ...]:
    """Return the files that the names are read from."""
    return tensorflow / _FRAMEWORK, tensorflow / _LIBRARY


def _fill_folder(folder: Path, tensorflow: Path, core: Path) -> None:
    names = find_cuda_names(tensorflow)
    if not names:
        raise InputError(
            f"The TensorFlow in {tensorflow} was built without CUDA: it has no GPU runtime.",
            hint=f"pip install tensorflow; {_PREDICT}",
        )

    rest = sorted(names - find_names(core))
    makers = [name for name in rest if _makes_handle(name)]
    content = make_library(
        [name for name in rest if name not in makers],
        makers,
        needed=CORE.encode(),
        soname=NAMES.encode(),
    )

    folder.parent.mkdir(parents=True, exist_ok=True)

    with TemporaryDirectory(prefix=".making-", dir=folder.parent) as place:
        staging = Path(place) / "lib"
        staging.mkdir()
        shutil.copyfile(core, staging / CORE)
        (staging / NAMES).write_bytes(content)

        for soname in SONAMES:
            (staging / soname).symlink_to(NAMES)
        _make_toolkit(staging / TOOLKIT)
        (staging / NOTE).write_text(
            _NOTE_TEXT.format(tensorflow=tensorflow),
            encoding="utf-8",
        )
        shutil.rmtree(folder, ignore_errors=True)

        try:
            staging.rename(folder)
        except OSError:
            if not (folder / NOTE).is_file():  # else another process was faster
                raise


def _makes_handle(name: bytes) -> bool:
    """Return whether a function stores a new handle where its first argument points."""
    is_node = name.startswith(b"cuGraphAdd") and b"Node" in name
    return is_node or (b"Create" in name and not name.startswith(b"cupti"))


def _make_toolkit(folder: Path) -> None:
    """Write the stand-ins for the files of CUDA's toolkit that XLA needs to compile."""
    programs = folder / "bin"
    libdevice = folder / "nvvm/libdevice"
    programs.mkdir(parents=True)
    libdevice.mkdir(parents=True)

    for tool in _TOOLS:
        shutil.copyfile(_STAND_INS / "tool.sh", programs / tool)
        (programs / tool).chmod(0o755)

    # LLVM's ``parseIRFile`` reads text and bitcode.
    shutil.copyfile(_STAND_INS / "libdevice.ll", libdevice / "libdevice.10.bc")


_PAGE = 4096  # bytes
_SYMBOL = struct.Struct("<IBBHQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_HEADER_BYTES = 64  # ``Elf64_Ehdr``
_GLOBAL_FUNC = 0x12
_PT_LOAD = 1
_PT_DYNAMIC = 2
_PT_STACK = 0x6474E551
_READ = 4
_WRITE = 2
_EXECUTE = 1
_NEEDED = 1
_HASH = 4
_STRTAB = 5
_SYMTAB = 6
_STRSZ = 10
_SYMENT = 11
_SONAME = 14
_RUNPATH = 29

_SUCCEED = b"\x31\xc0\xc3"  # xor %eax,%eax; ret
_POINT = b"\x48\x8d\x05"  # lea handle(%rip),%rax, without the distance
_STORE = b"\x48\x89\x07"  # mov %rax,(%rdi)
_MAKE_BYTES = len(_POINT) + 4 + len(_STORE) + len(_SUCCEED)

# Alignment of the parts of a file; 1 for all others.
_MULTIPLES = {"symbols": 8, "dynamic": _PAGE}


def make_library(
    names: Sequence[bytes],
    makers: Sequence[bytes],
    *,
    needed: bytes,
    soname: bytes,
) -> bytes:
    """Return a shared library called ``soname`` that exports a function for each name.

    All of them return 0. Those of ``makers`` also store a handle where their first argument points. The
    library ``needed`` in the same folder is loaded with it.
    """
    functions = [*names, *makers]
    texts = [*functions, needed, soname, b"$ORIGIN"]
    strings = b"\0" + b"".join(text + b"\0" for text in texts)
    *offsets, needed_at, soname_at, origin_at, _ = accumulate(
        (len(text) + 1 for text in texts), initial=1
    )
    chain = [0, *range(2, len(functions) + 1), 0]

    # the offset of each part; zero at first, to find the sizes
    at: Counter[str] = Counter()

    for _ in range(2):
        places = [at["succeed"]] * len(names) + [at["make"]] * len(makers)
        symbols = [
            _SYMBOL.pack(offset, _GLOBAL_FUNC, 0, 1, place, _MAKE_BYTES)
            for offset, place in zip(offsets, places, strict=True)
        ]
        distance = at["handle"] - at["make"] - len(_POINT) - 4
        entries = (
            (_NEEDED, needed_at),
            (_SONAME, soname_at),
            (_RUNPATH, origin_at),
            (_HASH, at["hash"]),
            (_STRTAB, at["strings"]),
            (_STRSZ, len(strings)),
            (_SYMTAB, at["symbols"]),
            (_SYMENT, _SYMBOL.size),
            (0, 0),
        )
        contents = {
            "header": _header(at["succeed"], at["dynamic"], at["handle"]),
            # One bucket with all symbols, so that no hash matters.
            "hash": struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1, *chain),
            "symbols": bytes(_SYMBOL.size) + b"".join(symbols),
            "strings": strings,
            "make": _POINT + struct.pack("<i", distance) + _STORE,
            "succeed": _SUCCEED,
            "dynamic": b"".join(_DYNAMIC.pack(*entry) for entry in entries),
            "handle": bytes(_PAGE),
        }

        image = b""

        for name, content in contents.items():
            image += bytes(-len(image) % _MULTIPLES.get(name, 1))
            at[name] = len(image)
            image += content

    return image


def _header(succeed_at: int, data_at: int, handle_at: int) -> bytes:
    """Return the header and its segments: code with its tables, data, dynamic section, stack."""
    code_end = succeed_at + len(_SUCCEED)
    data = (_READ | _WRITE, *(data_at,) * 3)
    segments = (
        (_PT_LOAD, _READ | _EXECUTE, 0, 0, 0, code_end, code_end, _PAGE),
        (_PT_LOAD, *data, *(handle_at + _PAGE - data_at,) * 2, _PAGE),
        (_PT_DYNAMIC, *data, *(handle_at - data_at,) * 2, 8),
        (_PT_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 8),
    )

    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    sizes = (_HEADER_BYTES, _SEGMENT.size, len(segments), 64, 0, 0)

    head = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, _HEADER_BYTES, 0, 0, *sizes)

    return identity + head + b"".join(_SEGMENT.pack(*one) for one in segments)
