import pytest

from analyzer.model.errors import (
    InputError,
)
from analyzer.model.units import (
    format_bytes,
    format_option_bytes,
    parse_bytes,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (100 * 1024, "100.0 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (3 * 1024**5, "3072.0 TiB"),
        (-1536, "-1.50 KiB"),
    ],
)
def test_bytes_as_text(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("10B", 10),
        ("1KiB", 1024),
        ("1kb", 1000),
        (" 1.5 MiB ", 3 * 2**19),
    ],
)
def test_text_as_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "ten", "10 XB", "-1GiB", "1e9", "10GiB!", "1.2.3", "nan"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InputError, match="is not a size"):
        parse_bytes(text)


def test_a_message_is_one_line() -> None:
    error = InputError("two\nlines\u2028three", hint="do\r\nthis")
    assert str(error) == "two lines three do this"


@pytest.mark.parametrize("size", [0, 1, 300 << 20, (300 << 20) + 1])
def test_size_for_an_option_is_exact(size: int) -> None:
    assert parse_bytes(format_option_bytes(size)) == size
