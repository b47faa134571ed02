"""Short and seeded, ``benchmarks/robustness/damaged.py``: no damage that moves a figure is silent."""

import gzip
import random
import sys

import pytest
from builders import ROOT, sample_folder, sample_trace

from analyzer.tracing.parse.protobuf import Space
from analyzer.tracing.parse.run_folder import read_run

sys.path.insert(0, str(ROOT / "benchmarks" / "robustness"))

from damaged import BAD, outcome_of, show
from damages import DAMAGES, Subject


@pytest.mark.parametrize(
    ("name", "rate", "every"), [("infer", 0.0, 1), ("eager", 0.02, 6)]
)
def test_no_damage_is_silent(name: str, rate: float, every: int) -> None:
    path, note = sample_trace(name), read_run(sample_folder(name) / "run.json")
    content = gzip.decompress(path.read_bytes())
    other = gzip.decompress(sample_trace("infer").read_bytes())
    whole = show(Space.FromString(content), note, path)
    assert whole.says == ()
    found = {}

    for number, (damage, alter) in list(enumerate(DAMAGES.items()))[::every]:
        space = Space.FromString(content)
        alter(Subject(space, random.Random(number), rate, Space.FromString(other)))
        found[damage] = outcome_of(whole, space, note, path)

    assert {damage: said for damage, (word, said) in found.items() if word in BAD} == {}
    told = [
        damage
        for damage, (word, _) in found.items()
        if word in ("announced", "refused")
    ]
    assert len(told) > 0.6 * len(found)
