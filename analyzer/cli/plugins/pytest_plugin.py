"""Marks of pytest that limit what TensorFlow's allocator hands out in a test.

    @pytest.mark.limit_memory("2 GiB")     # at one time
    @pytest.mark.limit_growth("1 MiB")     # and not given back when the test has ended

Nothing is imported or changed where no test has a mark. Where one has, TensorFlow's CPU allocator is
told to be the one that a GPU has, which writes each request into the profiler's trace; that is read
when TensorFlow makes its devices, after the tests are collected.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, Final

import pytest

MARKS: Final = {
    "limit_memory": "limit_memory(size): fail where TensorFlow's allocator has handed out more than "
    "this at one time in the test, such as '2 GiB'",
    "limit_growth": "limit_growth(size): fail where more than this is still handed out after the test, "
    "such as '1 MiB'",
}
_BFC: Final = "TF_CPU_ALLOCATOR_USE_BFC"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    for text in MARKS.values():
        config.addinivalue_line("markers", text)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check the marks, and prepare TensorFlow for them where there are any."""
    marked = [item for item in session.items if _limits(item)]
    if marked:
        os.environ.setdefault(_BFC, "1")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Measure a marked test, and fail it where it is over a limit."""
    limits = _limits(item)
    if not limits:
        return (yield)
    from analyzer.cli.plugins.measured_block import over_limits, tracing_block
    from analyzer.model.errors import AnalyzerError

    try:
        with tracing_block() as block:
            result = yield
        found = block.measured()
    except AnalyzerError as error:
        pytest.fail(f"{' and '.join(limits)} cannot be measured: {error}", pytrace=False)
    item.user_properties += [
        ("tf_memory_peak_bytes", found.peak_bytes),
        ("tf_memory_growth_bytes", found.growth_bytes),
    ]
    told = over_limits(found, limits.get("limit_memory"), limits.get("limit_growth"))
    if told:
        pytest.fail(told, pytrace=False)
    return result


def _limits(item: pytest.Item) -> dict[str, int]:
    """Return the limits of a test in bytes, by the mark's name.

    Raises:
        pytest.UsageError: a mark's size is none.
    """
    found = {}
    for name in MARKS:
        mark = item.get_closest_marker(name)
        if mark is None:
            continue
        from analyzer.model.errors import InputError
        from analyzer.model.units import parse_bytes

        try:
            (size,) = mark.args
            found[name] = parse_bytes(size)
        except (ValueError, TypeError):
            raise pytest.UsageError(
                f"{item.nodeid}: {name} takes one size, such as '2 GiB'."
            ) from None
        except InputError as error:
            raise pytest.UsageError(f"{item.nodeid}: {name}: {error}") from None
    return found
