"""The child process that compiles a module for a described card, with calls of PJRT's C API.

``python -m analyzer.simulate.compiler.pjrt FOLDER`` reads request and module in FOLDER and writes its
answer there (``card_note``). Within major version 0 functions are only appended to the table of
``xla/pjrt/c/pjrt_c_api.h``, so its indices stay valid. Each argument struct begins with its size.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any, Final

from analyzer.model.contract.card_note import (
    ANSWER_FILE,
    COMPILE_VERSION,
    MODULE_FILE,
    REQUEST_FILE,
    CompileAnswer,
    CompileRequest,
    Statistics,
)
from analyzer.model.contract.child_messages import read_message, write_message
from analyzer.model.interrupts import die_with_parent

TABLE: Final = {
    "Error_Message": 1,
    "Plugin_Initialize": 3,
    "TopologyDescription_Create": 82,
    "Compile": 89,
    "Executable_GetCompiledMemoryStats": 96,
}
"""Index of each function in ``PJRT_Api``."""

MAJOR: Final = 0  # of PJRT's interface; other versions have another layout
MINOR_MIN: Final = 90  # version of jax-cuda12-pjrt 0.9.0, the oldest that works (0.8.2 does not)

STATISTICS: Final = ("code", "argument", "output", "alias", "temp")

_OPTIONS: Final = b"\x1a\x11\x08" + b"\xff" * 9 + b"\x01\x20\x01\x28\x01\x50\x01"
"""``CompileOptionsProto { executable_build_options { device_ordinal: -1 num_replicas: 1
num_partitions: 1 alias_passthrough_params: true } }``: any one device. A result that is an argument
shares its buffer; TensorFlow requests this for each function with ``jit_compile`` (``CreateXlaKernel``
passes no reference variables to ``GenerateCompilerOptions``)."""

_STRING: Final = 0  # PJRT_NamedValue_kString


class PjrtError(Exception):
    """The library refused a call; the message is the library's."""


_SIZE, _POINTER, _TEXT, _INT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int


def _struct(name: str, /, **fields: Any) -> type[ctypes.Structure]:
    head = [("struct_size", _SIZE), ("extension", _POINTER)]
    return type(name, (ctypes.Structure,), {"_fields_": [*head, *fields.items()]})


_Version = _struct("_Version", major=_INT, minor=_INT)
_Message = _struct("_Message", error=_POINTER, message=_POINTER, message_size=_SIZE)
_Nothing = _struct("_Nothing")
_NamedValue = _struct(
    "_NamedValue", name=_TEXT, name_size=_SIZE, type=_INT, value=_TEXT, value_size=_SIZE
)
_Topology = _struct(
    "_Topology", name=_TEXT, name_size=_SIZE, options=_POINTER, count=_SIZE, topology=_POINTER
)
_Program = _struct("_Program", code=_TEXT, code_size=_SIZE, format=_TEXT, format_size=_SIZE)
_Compile = _struct(
    "_Compile",
    topology=_POINTER,
    program=_POINTER,
    options=_TEXT,
    options_size=_SIZE,
    client=_POINTER,
    executable=_POINTER,
)
# Five fields of the header are read; the library writes all of them.
_Statistics = _struct(
    "_Statistics",
    executable=_POINTER,
    **dict.fromkeys(STATISTICS, ctypes.c_int64),
    others=ctypes.c_int64 * 10,
)


class Plugin:
    """A loaded PJRT library; anything else raises a ``PjrtError``."""

    def __init__(self, path: str) -> None:
        try:
            entry = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW).GetPjrtApi
        except (OSError, AttributeError) as error:
            raise PjrtError(f"the compiler cannot be loaded: {error}") from None
        entry.restype = ctypes.c_void_p
        api = entry()
        if not api:
            raise PjrtError("the compiler gave no PJRT interface")
        head = ctypes.sizeof(_Nothing)
        version: Any = _Version.from_address(api + head)
        self._functions = api + head + ctypes.sizeof(_Version)
        if version.major != MAJOR or version.minor < MINOR_MIN:
            raise PjrtError(
                f"the compiler speaks PJRT {version.major}.{version.minor}, "
                f"not {MAJOR}.{MINOR_MIN} or later"
            )
        self._call("Plugin_Initialize", _Nothing())

    def compile_for(self, target: str, module: bytes) -> Statistics:
        """Compile a module for a card in the text form of ``GpuTargetConfigProto``."""
        size = ctypes.sizeof(_NamedValue)
        texts = {b"target_config": target.encode(), b"topology": b"1x1x1"}
        values = ((size, None, n, len(n), _STRING, text, len(text)) for n, text in texts.items())
        options = (_NamedValue * 2)(*(_NamedValue(*value) for value in values))
        topology: Any = _Topology(name=b"", options=ctypes.addressof(options), count=2)
        self._call("TopologyDescription_Create", topology)
        program = _Program(code=module, code_size=len(module), format=b"hlo", format_size=3)
        program.struct_size = ctypes.sizeof(program)
        compiled: Any = _Compile(
            topology=topology.topology,
            program=ctypes.addressof(program),
            options=_OPTIONS,
            options_size=len(_OPTIONS),
        )
        self._call("Compile", compiled)
        totals = _Statistics(executable=compiled.executable)
        self._call("Executable_GetCompiledMemoryStats", totals)
        return Statistics(**{f"{name}_bytes": int(getattr(totals, name)) for name in STATISTICS})

    def _call(self, name: str, arguments: Any) -> None:
        error = self._run(name, ctypes.c_void_p, arguments)
        if not error:
            return
        message: Any = _Message(error=error)
        self._run("Error_Message", None, message)
        text = ctypes.string_at(message.message, message.message_size).decode("utf-8", "replace")
        raise PjrtError(text or f"{name} failed")

    def _run(self, name: str, result: Any, arguments: Any) -> Any:
        arguments.struct_size = ctypes.sizeof(arguments)
        address = ctypes.c_void_p.from_address(self._functions + 8 * TABLE[name]).value
        if not address:
            raise PjrtError(f"the compiler has no PJRT_{name}")
        return ctypes.CFUNCTYPE(result, ctypes.c_void_p)(address)(ctypes.addressof(arguments))


def main(folder: Path) -> None:
    """Compile the module in ``folder``; write the statistics, or the compiler's error, there."""
    die_with_parent()
    request = read_message(folder / REQUEST_FILE, CompileRequest, COMPILE_VERSION)
    try:
        module = (folder / MODULE_FILE).read_bytes()
        statistics = Plugin(request.library).compile_for(request.target, module)
        answer = CompileAnswer(statistics=statistics)
    except PjrtError as error:
        answer = CompileAnswer(refused=str(error))
    write_message(folder / ANSWER_FILE, answer)
    sys.stderr.flush()
    os._exit(0)  # skips the slow tear-down of the library


if __name__ == "__main__":
    main(Path(sys.argv[1]))
