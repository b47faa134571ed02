"""A redacted result holds no name and no path of its model."""

import base64
import gzip
import re
from pathlib import Path

import pytest
from builders import opened_sample

from analyzer.report.redaction import redact_result


@pytest.mark.parametrize(
    "name",
    ["lstm", "accumulation", pytest.param("transformer", marks=pytest.mark.slow)],
)
def test_no_name_is_left_and_no_number_changes(name: str, tmp_path: Path) -> None:
    result = opened_sample(name)
    op_types = {str(one) for one in result.allocations["op_type"].unique()}
    private = {
        part
        for column in ("layer", "variable")
        for path in result.allocations[column].unique()
        for part in str(path).split("/")
        if len(part) > 4 and re.sub(r"_\d+$", "", part) not in op_types
    }
    redacted = redact_result(result)
    assert redacted.report.peak.requested_bytes == result.peak_bytes
    assert redacted.report.categories_at_peak == result.report.categories_at_peak
    redacted.to_json(tmp_path / "a.json")
    redacted.to_html(tmp_path / "a.html")
    redacted.to_csv(tmp_path / "a.csv")
    text = (tmp_path / "a.json").read_text() + (tmp_path / "a.csv").read_text()
    page = (tmp_path / "a.html").read_text()
    packed = re.search(r'id="packed">([^<]+)<', page)
    unpacked = gzip.decompress(base64.b64decode(packed[1]))
    text += unpacked.decode("utf-8", "replace")
    quoted = [
        part for part in private if re.search(rf"[\"/,]{re.escape(part)}[\"/,:]", text)
    ]
    assert quoted == []
    assert "traces/" not in text
    assert str(Path.cwd()) not in text + page
