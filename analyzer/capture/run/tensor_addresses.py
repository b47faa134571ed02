"""The address of a tensor's bytes, by which a variable is found among the allocations.

DLPack (``dlpack.h``) gives the address on any device: a capsule whose first field is the data
pointer, with the offset of the first element further on.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.private_names import is_eager


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


_WITHOUT_BYTES: Final = (tf.string, tf.resource, tf.variant)

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def find_address(tensor: Any) -> int | None:
    """Return the address of an eager tensor's first byte; None for strings, resources, empty tensors.

    TensorFlow copies and allocates nothing.
    """
    if not tf.is_tensor(tensor) or not is_eager(tensor):
        return None
    if tensor.dtype in _WITHOUT_BYTES:
        return None  # DLPack would crash the process
    try:
        capsule = tf.experimental.dlpack.to_dlpack(tensor)
    except (tf.errors.OpError, TypeError, ValueError, RuntimeError):
        return None
    pointer = _get_pointer(capsule, b"dltensor")
    if not pointer:
        return None
    description = _DLTensor.from_address(pointer)
    address = int(description.data + description.byte_offset)
    return address or None


def find_variable_address(variable: Any) -> int | None:
    """Return the address of a ``tf.Variable``'s buffer; None if it holds no plain tensor."""
    try:
        with tf.device(variable.device):  # reading on another device copies
            value = variable.read_value()
    except (tf.errors.OpError, ValueError, AttributeError):
        return None
    return find_address(value)
