"""The private folder: what lies in it, made once for each TensorFlow and each core."""

import ctypes

import pytest
from builders import run_python
from simulated_cards import NEEDS_CARDS

from analyzer.cards.catalogue import find_gpu
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.errors import InputError
from analyzer.simulated_card import card_environment
from analyzer.simulated_card import core_build as compiling
from analyzer.simulated_card import library_folder as folder
from analyzer.simulated_card.card_environment import make_card_environment

pytestmark = NEEDS_CARDS
WANTED = frozenset(
    {b"cudaMalloc", b"cuMemGetInfo_v2", b"cublasSasum_v2", b"cuNewerThanUs"}
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def made(cache, monkeypatch):
    monkeypatch.setattr(folder, "find_tensorflow", lambda: cache)
    monkeypatch.setattr(folder, "list_binaries", lambda place: ())
    monkeypatch.setattr(folder, "find_cuda_names", lambda place: WANTED)
    found = folder.make_library_folder(cache)
    monkeypatch.setattr(card_environment, "make_library_folder", lambda cache: found)
    return found


def test_what_the_core_has_is_not_answered_by_the_names(made):
    core = ctypes.CDLL(str(made / compiling.CORE))
    rest = (made / folder.NAMES).read_bytes()
    for name in WANTED:
        assert hasattr(core, name.decode()) != (name + b"\0" in rest), name
    assert "simulated card" in (made / folder.NOTE).read_text()


def test_it_is_made_once(made, cache, monkeypatch):
    monkeypatch.setattr(
        folder, "find_cuda_names", lambda place: pytest.fail("read again")
    )
    assert folder.make_library_folder(cache) == made


def test_a_tensorflow_without_cuda_is_told_in_one_line(cache, monkeypatch):
    monkeypatch.setattr(folder, "find_tensorflow", lambda: cache / "cpu")
    monkeypatch.setattr(folder, "list_binaries", lambda place: (cache / "core",))
    (cache / "core").write_bytes(b"")
    monkeypatch.setattr(folder, "find_cuda_names", lambda place: frozenset())
    with pytest.raises(InputError, match="without CUDA"):
        folder.make_library_folder(cache)


def test_without_a_library_and_a_compiler_it_says_what_to_install(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(folder, "NATIVE", tmp_path)
    monkeypatch.setattr(folder, "find_compiler", lambda: None)
    with pytest.raises(InputError) as caught:
        folder.find_core(tmp_path)
    assert "compiler" in caught.value.message


PROGRAM = """
import ctypes
runtime = ctypes.CDLL("libcudart.so.12")
count, free, total, where = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_void_p()
assert runtime.cudaGetDeviceCount(ctypes.byref(count)) == 0
runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
first = free.value
runtime.cudaMalloc(ctypes.byref(where), ctypes.c_uint64(1 << 30))
runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
refused = runtime.cudaMalloc(ctypes.byref(where), ctypes.c_uint64(1 << 40))
dnn, minor = ctypes.CDLL("libcudnn.so.9"), ctypes.c_int()
dnn.cudnnGetProperty(1, ctypes.byref(minor))
sum = runtime.cublasSasum_v2(1, 2, 3)
print(count.value, total.value, first - free.value, refused, sum, minor.value)
"""
BUILT_FOR = (
    10  # cuDNN's minor version of TensorFlow 2.23's nightly, which refuses older ones
)


def test_a_process_sees_the_cards_their_memory_and_its_end(made, tmp_path):
    card = find_gpu("t4")
    told = make_card_environment(CaptureOptions(gpu="2xt4"), tmp_path)
    ended = run_python("-c", PROGRAM, **told)
    *found, minor = ended.stdout.split()
    assert found == ["2", str(card.memory_bytes), str(1 << 30), "2", "0"]
    assert int(minor) >= BUILT_FOR


KERNEL = """
import ctypes
TO_CARD, TO_HOST = 1, 2
ctypes.CDLL("libstdc++.so.6", ctypes.RTLD_GLOBAL)  # as in a process with TensorFlow: it reads names
runtime = ctypes.CDLL("libcudart.so.12")
class Dim(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]
card = ctypes.c_void_p()
runtime.cudaMalloc(ctypes.byref(card), ctypes.c_uint64(1 << 20))
def at(number):
    return ctypes.c_void_p(card.value + 4 * number)
def read(number):
    seen = ctypes.c_int32(-1)
    runtime.cudaMemcpy(ctypes.byref(seen), at(number), ctypes.c_uint64(4), TO_HOST)
    return seen.value
given = (ctypes.c_int32 * 1000)(*range(1000))
runtime.cudaMemcpy(at(0), given, ctypes.c_uint64(4000), TO_CARD)
found = [read(0), read(500), read(999), read(1000)]
host, name = ctypes.c_void_p(0x1000), ctypes.c_char_p(b"_Z4castPKfPi")  # cast(float const*, int*)
runtime.__getattr__("__cudaRegisterFunction")(None, host, None, name)
pointers = [ctypes.c_void_p(card.value + (1 << 19)), at(512)]
arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(each) for each in pointers))
runtime.cudaLaunchKernel(host, Dim(1, 1, 1), Dim(1, 1, 1), arguments, ctypes.c_uint64(0), None)
found += [read(500), read(512), read(999)]
runtime.cudaMemcpy(at(704), given, ctypes.c_uint64(8), TO_CARD)
found += [read(705), read(706)]
driver, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
driver.cuModuleGetFunction(ctypes.byref(kernel), None, b"Cast_GPU_DT_FLOAT_DT_INT32_kernel")
def tensor(address, count):  # twice its address, an offset, an axis, its stride
    return address.value, address.value, 0, count, 1
values = (ctypes.c_uint64 * 10)(*tensor(pointers[0], 300), *tensor(at(512), 300))
where = (ctypes.c_void_p * 64)(*(ctypes.addressof(values) + 8 * k for k in range(10)))
driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, where, None)
print(*found, read(705))
"""


def test_what_is_read_off_a_card_was_put_there_or_is_zero(made, tmp_path):
    """A kernel's result is not computed: its last number is not what lay there before."""
    told = make_card_environment(CaptureOptions(gpu="t4"), tmp_path)
    ended = run_python("-c", KERNEL, **told)
    assert ended.stdout == "0 500 999 0 500 0 0 1 0 0\n", ended.stderr


@pytest.mark.parametrize("version", ["8", "8.9.7"])
def test_an_older_cudnn_is_refused_by_version(cache, tmp_path, monkeypatch, version):
    info = tmp_path / "python/platform/build_info.py"
    info.parent.mkdir(parents=True)
    info.write_text(f"build_info = OrderedDict([('cudnn_version', '{version}')])\n")
    monkeypatch.setattr(folder, "find_tensorflow", lambda: tmp_path)
    with pytest.raises(InputError, match=r"TensorFlow 2\.18 or newer"):
        folder.make_library_folder(cache)


CONVOLUTION = """
import ctypes, sys
from analyzer.cards.catalogue import find_gpu
from analyzer.simulated_card.core_calls import register_convolutions
register_convolutions([find_gpu("t4")])
DESCRIPTOR, INT64, FLOAT = 15, 3, 0
dnn = ctypes.CDLL("libsimulated_card.so")
def make(kind, **attributes):
    made = ctypes.c_void_p()
    dnn.cudnnBackendCreateDescriptor(kind, ctypes.byref(made))
    for key, (type, values) in attributes.items():
        width = {DESCRIPTOR: ctypes.c_void_p, INT64: ctypes.c_int64, FLOAT: ctypes.c_int}[type]
        array = (width * len(values))(*values)
        count = ctypes.c_int64(len(values))
        dnn.cudnnBackendSetAttribute(made, int(key[1:]), type, count, array)
    return made
def tensor(*axes):
    return make(14, _901=(FLOAT, [0]), _902=(INT64, axes), _903=(INT64, [9**9, 9**5, 99, 1]))
window = make(9, _102=(INT64, [1, 1]), _103=(INT64, [1, 1]))
parts = [window, tensor(128, 64, 3, 3), tensor(32, 64, 56, 56), tensor(32, 128, 56, 56)]
operation = make(10, **{f"_{702 + at}": (DESCRIPTOR, [one.value]) for at, one in enumerate(parts)})
heuristic = make(4, _200=(DESCRIPTOR, [make(15, _800=(DESCRIPTOR, [operation.value])).value]))
found = (ctypes.c_void_p * 32)(*[make(3).value for _ in range(32)])
count, one, size = ctypes.c_int64(), ctypes.c_int64(1), ctypes.c_int64()
dnn.cudnnBackendGetAttribute(
    heuristic, 202, DESCRIPTOR, ctypes.c_int64(32), ctypes.byref(count), found)
for plan in found[: count.value]:
    dnn.cudnnBackendGetAttribute(
        ctypes.c_void_p(plan), 303, INT64, one, ctypes.byref(one), ctypes.byref(size))
    print(size.value)
"""


def test_cudnn_offers_the_algorithms_of_the_estimate(made, tmp_path):
    from analyzer.simulate.kernels.cudnn_algorithms import Convolution, find_offers

    card = find_gpu("t4")
    variables = make_card_environment(CaptureOptions(gpu="t4"), tmp_path)
    ended = run_python("-c", CONVOLUTION, **variables)
    call = Convolution(
        direction="forward", image=(32, 64, 56, 56), kernel=(128, 3, 3), result=(56, 56)
    )
    expected = [one.bytes for one in find_offers(call, card, 8 << 30)]
    assert list(map(int, ended.stdout.split())) == expected
    assert len(set(expected)) > 3


def test_a_library_without_the_allocators_functions_counts_no_requests(made):
    """As of a TensorFlow that names them otherwise: here none is loaded."""
    ask = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).simulated_card_requested_peak(0))"
    assert run_python("-c", ask, made / compiling.CORE).stdout == "-1\n"
