"""A library written without a compiler, loaded and called."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from analyzer.simulated_card import elf
from analyzer.simulated_card.card_environment import check_platform
from analyzer.simulated_card.core_build import find_compiler

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="ELF is Linux's"),
    pytest.mark.skipif(
        find_compiler() is None, reason="needs a compiler for the other side"
    ),
]
NAMES = [
    b"cuOne",
    b"cublasTwo_v2",
    b"ncclThree",
    *(b"cudaMany%d" % n for n in range(3000)),
]
ANSWER = """
#include <string.h>
long answer(const char *name, void **arguments) {
  return (long)(strlen(name) + (long)arguments[0] * 100 + (long)arguments[5] * 10000);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    check_platform()
    folder = tmp_path_factory.mktemp("elf")
    (folder / "answer.c").write_text(ANSWER)
    command = [*find_compiler(), "-shared", "-fPIC", "-Wl,-soname,libanswer.so"]
    subprocess.run([*command, "-o", "libanswer.so", "answer.c"], cwd=folder, check=True)
    content = elf.make_library(
        NAMES, answer=b"answer", needed=b"libanswer.so", soname=b"libnames.so"
    )
    (folder / "libnames.so").write_bytes(content)
    return folder


def test_every_name_is_found_and_no_other(folder):
    library = ctypes.CDLL(str(folder / "libnames.so"))
    assert all(hasattr(library, name.decode()) for name in NAMES)
    assert not hasattr(library, "cudaMany")


@pytest.mark.parametrize("name", [NAMES[0], NAMES[1], NAMES[2], NAMES[-1]])
def test_each_function_hands_on_its_name_and_its_arguments(folder, name):
    library = ctypes.CDLL(str(folder / "libnames.so"))
    function = getattr(library, name.decode())
    function.restype = ctypes.c_long
    assert function(3, 0, 0, 0, 0, 7) == len(name) + 300 + 70000
