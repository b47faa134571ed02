"""Let another function make the calls of a function of TensorFlow or Keras. Needs no TensorFlow."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeAlias
from unittest.mock import patch

Arguments: TypeAlias = tuple[Any, ...]  # of a call
Keywords: TypeAlias = dict[str, Any]  # arguments of a call, by name
Call: TypeAlias = Callable[..., Any]


@contextmanager
def wrap_calls(owner: Any, name: str, call: Call) -> Iterator[None]:
    """In the block, let ``call`` make the calls of a function of a class or module.

    It gets the function and the arguments of the call.
    """
    old = getattr(owner, name)

    @wraps(old)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(old, *args, **kwargs)

    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    with patch.object(owner, name, staticmethod(wrapper) if is_static else wrapper):
        yield
