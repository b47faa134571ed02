"""A library written without a compiler, loaded and called."""

import ctypes
import sys

import pytest

from analyzer.simulated_card.card_environment import check_platform
from analyzer.simulated_card.elf import make_library

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ELF is Linux's")
NAMES = [b"cuOne", *(b"cudaMany%d" % n for n in range(3000))]
MAKERS = [b"cublasTwoCreate", b"ncclThreeCreate"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    check_platform()
    path = tmp_path_factory.mktemp("elf") / "libnames.so"
    content = make_library(NAMES, MAKERS, needed=b"libc.so.6", soname=b"libnames.so")
    path.write_bytes(content)
    return ctypes.CDLL(str(path))


def test_every_name_is_found_and_no_other(library):
    assert all(hasattr(library, name.decode()) for name in (*NAMES, *MAKERS))
    assert not hasattr(library, "cudaMany")


@pytest.mark.parametrize("name", [*NAMES[:2], NAMES[-1], *MAKERS])
def test_each_function_succeeds_and_a_maker_stores_a_handle(library, name):
    handle = ctypes.c_void_p()
    assert getattr(library, name.decode())(ctypes.byref(handle)) == 0
    assert bool(handle) is (name in MAKERS)
    if handle:
        assert ctypes.string_at(handle, 64) == bytes(64)
