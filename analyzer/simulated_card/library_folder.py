"""The folder of libraries that TensorFlow loads for a simulated card instead of CUDA's.

It lies in the user's cache, one for each TensorFlow and each core: the core library (compiled from
``native/``), a library with every other function name that TensorFlow looks up (``elf.py``), and links
to the latter under the names of CUDA's libraries. Its subfolder ``cuda`` stands for CUDA's toolkit: XLA
finds ``ptxas``, ``nvlink`` and ``libdevice.10.bc`` there.
"""

import hashlib
import importlib.util
import mmap
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from analyzer.model.errors import InputError
from analyzer.simulate.kernels.cudnn_algorithms import CUDNN_MAJOR
from analyzer.simulated_card.core_build import CORE, NATIVE, build, find_compiler
from analyzer.simulated_card.elf import make_library

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
