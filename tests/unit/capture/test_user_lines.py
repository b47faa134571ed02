"""The statements that put something into a container are found in the user's file."""

from __future__ import annotations

from pathlib import Path

from analyzer.capture.watch.holders.user_lines import find_binding_lines, find_growing_lines

CODE = """\
kept, table, total = [], {}, 0
other = []
class Run:
    def step(self, value):
        self.kept.append(value)
def work():
    kept = []
    for i in range(3):
        kept += [i]
    table[i] = i
    table.setdefault(i, []).append(i)
    other.sort()
"""


def test_statements_that_put(tmp_path: Path) -> None:
    file = str(tmp_path / "code.py")
    Path(file).write_text(CODE)
    assert find_growing_lines(file, "kept") == [5, 9]
    assert find_growing_lines(file, "kept", "work") == [9]
    assert find_growing_lines(file, "table", "nowhere") == [10, 11]
    assert find_growing_lines(file, "other") == []
    assert find_binding_lines(file, "other") == [2]
    assert find_binding_lines(file, "kept") == [9, 1, 7]


SEVERAL = """\
history = {"loss": [], "outputs": []}
history["loss"].append(float(loss))
history["outputs"].append(outputs)
history.setdefault("late", []).append(late)
history["total"] = total
kept.append(float(loss))
kept.append(loss)
"""


REBOUND = """\
rows = []
rows = rows + [row]
table = {}
table = {**table, key: row}
outs = (first,)
outs = (*outs, more)
total = other + 1
names = names | {name}
last = (row, *last[:2])
"""


def test_a_name_that_is_bound_to_what_it_was_and_more(tmp_path: Path) -> None:
    file = str(tmp_path / "code.py")
    Path(file).write_text(REBOUND)
    found = {name: find_growing_lines(file, name) for name in ("rows", "table", "outs", "names")}
    assert found == {"rows": [2], "table": [4], "outs": [6], "names": [8]}
    assert find_growing_lines(file, "total") == find_growing_lines(file, "last") == []


def test_of_several_statements_the_one_that_puts_what_is_held_goes_first(tmp_path: Path) -> None:
    file = str(tmp_path / "code.py")
    Path(file).write_text(SEVERAL)
    for key, line in {"outputs": 3, "late": 4, "total": 5, "loss": 2}.items():
        assert find_growing_lines(file, "history", keys=frozenset([key]))[0] == line
    assert find_growing_lines(file, "kept") == [7, 6]


def test_what_cannot_be_read_has_no_lines(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    assert find_growing_lines(str(file), "kept") == []
    file.write_text("def broken(:")
    assert find_binding_lines(str(file), "kept") == []
