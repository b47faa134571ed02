"""The names that the installed TensorFlow looks up in CUDA's libraries, read from its own files.

Its lazy loaders (``tsl/cuda/*_stub.cc``) export a function of each name; cuSOLVER's are told by a
table of text. Names that a library does not have come back as an error, so every one is answered.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Final

from analyzer.phantom.elf import read_exports

_APIS: Final = re.compile(
    rb"(?:__cuda|cu[A-Z]|cuda[A-Z]|cublas|cudnn|cufft|cusolver|cusparse|curand|nccl|nvml|cupti)\w+"
)
_IN_TEXT: Final = re.compile(rb"\0(cusolver(?:Dn|Sp|Get|Create)\w+)(?=\0)")
_FRAMEWORK: Final = "libtensorflow_framework.so.2"
_LIBRARY: Final = "libtensorflow_cc.so.2"


def find_cuda_names(tensorflow: Path) -> frozenset[bytes]:
    """Return the names.

    Args:
        tensorflow: The package's folder.

    Returns:
        None of CUDA's where TensorFlow was built without it.
    """
    found = {name for name in read_exports(tensorflow / _FRAMEWORK) if _APIS.fullmatch(name)}
    if found:
        with (tensorflow / _LIBRARY).open("rb") as file:
            # Not closed by a ``with``: where Ctrl-C ends the search, the search still holds it.
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        found |= {match[1] for match in _IN_TEXT.finditer(data)}
    return frozenset(found)


def binaries(tensorflow: Path) -> tuple[Path, ...]:
    """Return the files that the names are read from."""
    return tensorflow / _FRAMEWORK, tensorflow / _LIBRARY
