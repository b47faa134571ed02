"""Write a shared library of Linux on x86-64 (ELF) without a compiler.

The written library has one function for each name in a list. Each calls one function of another
library with its own name and its first six arguments: it loads its number into ``eax`` and jumps to the
code of ``_common``. Source: System V ABI with its AMD64 supplement, and the layouts in ``elf.h``.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

_PAGE = 4096  # bytes
_SYMBOL = struct.Struct("<IBBHQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_RELOCATION = struct.Struct("<QQq")
_HEADER_BYTES = 64  # ``Elf64_Ehdr``
_GLOBAL_FUNC = 0x12
_PT_LOAD = 1
_PT_DYNAMIC = 2
_PT_STACK = 0x6474E551
_READ = 4
_WRITE = 2
_EXECUTE = 1
_R_GLOB_DAT = 6  # ``R_X86_64_GLOB_DAT``
_NEEDED = 1
_HASH = 4
_STRTAB = 5
_SYMTAB = 6
_RELA = 7
_RELASZ = 8
_RELAENT = 9
_STRSZ = 10
_SYMENT = 11
_SONAME = 14
_RUNPATH = 29
_STUB_BYTES = 10  # of code for one function: ``mov eax, number`` and ``jmp``

# Alignment of the parts of a file; 1 for all others.
_MULTIPLES = {"symbols": 8, "relocation": 8, "code": 16, "dynamic": _PAGE}


def make_library(
    names: Sequence[bytes],
    *,
    answer: bytes,
    needed: bytes,
    soname: bytes,
) -> bytes:
    """Return a shared library called ``soname`` that exports a function for each name.

    All of them call ``answer``, a function of the library ``needed`` in the same folder.
    """
    texts = [*names, answer, needed, soname, b"$ORIGIN"]
    strings = b"\0" + b"".join(text + b"\0" for text in texts)
    *offsets, answer_at, needed_at, soname_at, origin_at, _ = accumulate(
        (len(text) + 1 for text in texts), initial=1
    )
    chain = [0, *range(2, len(names) + 2), 0]

    # the offset of each part; zero at first, to find the sizes
    at: Counter[str] = Counter()

    for _ in range(2):
        stubs = [at["code"] + _STUB_BYTES * number for number in range(len(names))]
        common = _common(at["common"], at["offsets"], at["strings"], at["slot"])
        entries = (
            *((_NEEDED, needed_at), (_SONAME, soname_at), (_RUNPATH, origin_at)),
            *_list_tables(at, len(strings)),
        )

        symbols = (
            _SYMBOL.pack(offset, _GLOBAL_FUNC, 0, 1, stub_at, _STUB_BYTES)
            for offset, stub_at in zip(offsets, stubs, strict=True)
        )

        code = (
            struct.pack(
                "<BIBi",
                0xB8,
                number,
                0xE9,
                at["common"] - stub_at - _STUB_BYTES,
            )
            for number, stub_at in enumerate(stubs)
        )

        undefined = _SYMBOL.pack(answer_at, _GLOBAL_FUNC, 0, 0, 0, 0)
        contents = {
            "header": _header(at["common"] + len(common), at["dynamic"], at["slot"]),
            # One bucket with all symbols, so that no hash matters.
            "hash": struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1, *chain),
            "symbols": b"".join((bytes(_SYMBOL.size), *symbols, undefined)),
            "strings": strings,
            "relocation": _RELOCATION.pack(
                at["slot"], (len(names) + 1) << 32 | _R_GLOB_DAT, 0
            ),
            "offsets": struct.pack(f"<{len(names)}I", *offsets),
            "code": b"".join(code),
            "common": common,
            "dynamic": b"".join(_DYNAMIC.pack(*entry) for entry in entries),
            "slot": bytes(8),
        }

        image = b""

        for name, content in contents.items():
            image += bytes(-len(image) % _MULTIPLES.get(name, 1))
            at[name] = len(image)
            image += content

    return image


def _list_tables(at: Counter[str], strings_bytes: int) -> list[tuple[int, int]]:
    """Return the entries of the dynamic section about other parts of the file, and its end."""
    return [
        (_HASH, at["hash"]),
        (_STRTAB, at["strings"]),
        (_STRSZ, strings_bytes),
        (_SYMTAB, at["symbols"]),
        (_SYMENT, _SYMBOL.size),
        (_RELA, at["relocation"]),
        (_RELASZ, _RELOCATION.size),
        (_RELAENT, _RELOCATION.size),
        (0, 0),
    ]


def _common(at: int, offsets_at: int, strings_at: int, slot_at: int) -> bytes:
    """Return the code that all functions jump to, with the index of the name in ``eax``."""
    code = bytearray()

    def relative(operation: bytes, target: int) -> None:
        end = at + len(code) + len(operation) + 4
        code.extend(operation + struct.pack("<i", target - end))

    code += b"\x55\x48\x89\xe5"  # push %rbp; mov %rsp,%rbp
    code += b"\x41\x51\x41\x50\x51\x52\x56\x57"  # push %r9 %r8 %rcx %rdx %rsi %rdi
    relative(b"\x48\x8d\x3d", offsets_at)  # lea offsets(%rip),%rdi
    code += b"\x8b\x3c\x87"  # mov (%rdi,%rax,4),%edi

    relative(b"\x48\x8d\x35", strings_at)  # lea strings(%rip),%rsi
    code += b"\x48\x01\xf7\x48\x89\xe6"  # add %rsi,%rdi; mov %rsp,%rsi
    relative(b"\xff\x15", slot_at)  # call *slot(%rip)
    code += b"\xc9\xc3"  # leave; ret

    return bytes(code)


def _header(code_end: int, data_at: int, slot_at: int) -> bytes:
    """Return the header and its segments: code with its tables, data, dynamic section, stack."""
    data = (_READ | _WRITE, *(data_at,) * 3)
    segments = (
        (_PT_LOAD, _READ | _EXECUTE, 0, 0, 0, code_end, code_end, _PAGE),
        (_PT_LOAD, *data, *(slot_at + 8 - data_at,) * 2, _PAGE),
        (_PT_DYNAMIC, *data, *(slot_at - data_at,) * 2, 8),
        (_PT_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 8),
    )

    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    sizes = (_HEADER_BYTES, _SEGMENT.size, len(segments), 64, 0, 0)

    head = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, _HEADER_BYTES, 0, 0, *sizes)

    return identity + head + b"".join(_SEGMENT.pack(*one) for one in segments)
