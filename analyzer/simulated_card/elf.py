"""A shared library of functions that only return 0, written as ELF without a compiler.

System V ABI with its AMD64 supplement, and the layouts in ``elf.h``.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

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
