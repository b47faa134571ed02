"""A coding agent's dialogue: a log, a script, "make it fit this card"."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from simulated_cards import NEEDS_CARDS

pytest.importorskip("mcp", reason="the extra mcp is not installed")

import anyio
import mcp

from analyzer.cli.agents.mcp_server import make_server

pytestmark = [pytest.mark.slow, NEEDS_CARDS]

LOG = Path(__file__).parents[1] / "unit" / "oom" / "logs" / "gpu_conv.log.gz"
SCRIPT = """
import keras
def build_model():
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((64, 64, 3)), layers.Conv2D(64, 3), layers.Conv2D(128, 3),
        layers.GlobalAveragePooling2D(), layers.Dense(10)])
    model.compile("sgd", "mse")
    return model
"""


def test_a_log_and_a_script_lead_to_a_batch_that_fits(folder: Path) -> None:
    (folder / "gpu_job.py").write_text(SCRIPT)

    async def talk() -> None:
        async with mcp.Client(make_server()) as client:

            async def ask(tool: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, result.content
                answer: dict[str, Any] = json.loads(result.content[0].text)
                return answer

            log = await ask("oom", log=str(LOG))
            (failure,) = log["failures"]
            assert failure["shape"] == [256, 60, 60, 128]
            words = shlex.split(log["next_command"])
            options = dict(zip(words[3::2], words[4::2], strict=True))
            assert options["--gpu"] == "t4"

            same = {"target": "gpu_job.py:build_model", "gpu": "t4", "jit": False}
            same["limit"] = options["--limit"]
            batch = failure["shape"][0]
            answer = await ask("fit", **same, batch_size=batch)
            assert answer["exit_code"] == 3
            assert answer["wanted_fits"] is False
            assert 0 < answer["safe"] <= answer["largest"] < batch

            check = await ask("estimate", **same, batch_size=answer["safe"])
            assert (check["exit_code"], check["fits"]) == (0, True)

    anyio.run(talk)
