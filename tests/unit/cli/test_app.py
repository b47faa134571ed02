"""The list of the commands, which loads none of them."""

import pytest
from builders import run_python

from analyzer.cli.app import COMMANDS, load_command


@pytest.mark.parametrize("name", COMMANDS)
def test_each_parameter_has_a_help_text(name):
    assert [one.name for one in load_command(name).params if not one.help] == []


def test_help_loads_nothing_that_a_command_works_with():
    code = (
        "import sys\n"
        "from analyzer.cli.app import app\n"
        "try:\n    app(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "print([m for m in ('pandas', 'numpy', 'networkx', 'keras', 'tensorflow') if m in sys.modules])"
    )
    done = run_python("-c", code)
    assert all(name in done.stdout for name in COMMANDS)
    assert done.stdout.splitlines()[-1] == "[]"
