"""The private folder that a phantom card's process finds CUDA's libraries in.

It lies in the user's cache, one for each TensorFlow and each core, and holds three kinds of files:
the core (``core_library``), a library of every other name that this
TensorFlow looks
up (``elf``), and links by the names of CUDA's libraries to the latter.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Final

from analyzer.model.errors import InputError
from analyzer.phantom import elf
from analyzer.phantom import looked_up_names as names
from analyzer.phantom.core_build import CORE
from analyzer.phantom.core_library import core_library

NAMES: Final = "libphantom_names.so"
ANSWER: Final = b"phantom_unwritten"
NOTE: Final = "README"
_NOTE: Final = """\
Libraries of tf-memory-analyzer's phantom card. They stand in for CUDA's in the processes that
`analyze trace --gpu NAME` starts, and in no others; they compute nothing. Made for {tensorflow}.
May be removed at any time.
"""

SONAMES: Final = (
    *("libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2", "libcurand.so.10"),
    *("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11"),
    *("libcusolver.so.11", "libcusparse.so.12", "libcudnn.so.8", "libcudnn.so.9"),
    *("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcufft.so.12"),
    *("libcusolver.so.12", "libcusparse.so.13"),
)
"""Names that TensorFlow opens, of CUDA 12 with cuDNN 8 and 9 and of CUDA 13. CUPTI is left out: the
profiler goes on without it, and its host tracer records the allocators all the same."""


def make_library_folder(cache: Path) -> Path:
    """Return the folder for the installed TensorFlow, made at first use.

    Args:
        cache: Where folders are kept.

    Raises:
        InputError: TensorFlow is not installed, or was built without CUDA.
    """
    tensorflow = tensorflow_folder()
    core = core_library(cache)
    folder = cache / f"lib-{_key(tensorflow, core)}"
    if not (folder / NOTE).is_file():
        _make(folder, tensorflow, core)
    return folder


def tensorflow_folder() -> Path:
    """Return the installed TensorFlow's folder, without importing it.

    Raises:
        InputError: it is not installed, or has not the files of the Linux wheel.
    """
    found = importlib.util.find_spec("tensorflow")
    for place in (found.submodule_search_locations or ()) if found else ():
        if all(path.is_file() for path in names.binaries(Path(place))):
            return Path(place)
    raise InputError(
        "This TensorFlow has not the libraries of its Linux wheel, which phantom cards are made for.",
        hint="pip install tensorflow; analyze estimate --gpu NAME predicts with any.",
    )


def _make(folder: Path, tensorflow: Path, core: Path) -> None:
    wanted = names.find_cuda_names(tensorflow)
    if not wanted:
        raise InputError(
            f"The TensorFlow in {tensorflow} was built without CUDA: it has no GPU runtime.",
            hint="pip install tensorflow; analyze estimate --gpu NAME predicts with any.",
        )
    own = set(elf.read_exports(core))
    rest = sorted(wanted - own)
    content = elf.library(rest, answer=ANSWER, needed=CORE.encode(), soname=NAMES.encode())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as place:
        made = Path(place) / "lib"
        made.mkdir()
        shutil.copyfile(core, made / CORE)
        (made / NAMES).write_bytes(content)
        for soname in SONAMES:
            (made / soname).symlink_to(NAMES)
        (made / NOTE).write_text(_NOTE.format(tensorflow=tensorflow), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            made.rename(folder)
        except OSError:
            if not (folder / NOTE).is_file():  # another process was not faster
                raise


def _key(tensorflow: Path, core: Path) -> str:
    digest = hashlib.sha256(core.read_bytes())
    for path in names.binaries(tensorflow):
        status = path.stat()
        digest.update(f"{path}:{status.st_size}:{status.st_mtime_ns};".encode())
    return digest.hexdigest()[:16]
