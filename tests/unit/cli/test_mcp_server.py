"""The MCP server, with the client of the same package."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from builders import COMMAND, analyze, sample_folder, wait_until

pytest.importorskip("mcp", reason="the extra mcp is not installed")

import anyio
import mcp
from mcp.client.stdio import StdioServerParameters, stdio_client

from analyzer.cli.agents.mcp_server import make_server
from analyzer.report.short_json import SHORT_BYTES

Use = Callable[[mcp.Client], Awaitable[Any]]


def with_client(use: Use, server: Any = None) -> Any:
    """Return the result of ``use`` with a client of a server, by default one in memory."""

    async def run() -> Any:
        async with mcp.Client(server or make_server()) as client:
            return await use(client)

    return anyio.run(run)


def text_of(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


def test_each_command_is_a_tool_with_the_options_of_its_help() -> None:
    tools = with_client(lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == [
        *("trace", "estimate", "fit", "gpus", "diff", "oom", "device")
    ]
    by_name = {tool.name: tool.input_schema for tool in tools}
    assert by_name["fit"]["required"] == ["target"]
    assert by_name["fit"]["properties"]["batch_size"]["type"] == "integer"
    assert by_name["trace"]["properties"]["shape"]["type"] == "array"
    assert "json" not in by_name["trace"]["properties"]
    descriptions = [
        one["description"] for s in by_name.values() for one in s["properties"].values()
    ]
    assert all(descriptions)


def test_a_call_returns_the_short_document_and_reports_progress() -> None:
    stages: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        stages.append(message or "")

    result = with_client(
        lambda client: client.call_tool(
            "trace", {"target": str(sample_folder("cnn"))}, progress_callback=note
        )
    )
    document = json.loads(text_of(result))
    assert len(text_of(result)) <= SHORT_BYTES
    assert document.pop("exit_code") == 0
    assert document == json.loads(
        analyze("trace", sample_folder("cnn"), "--json", "-").out
    )
    assert stages


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("trace", {"target": "absent.py:model"}, "absent.py"),
        ("gpus", {"json": "a.json"}, "gpus has no json."),
        ("skill", {}, "There is no tool skill."),
    ],
)
def test_bad_input_is_an_error_with_the_fix(
    tool: str, arguments: dict[str, str], says: str
) -> None:
    result = with_client(lambda client: client.call_tool(tool, arguments))
    assert result.is_error
    assert says in text_of(result)
    assert "Traceback" not in text_of(result)


def test_a_cancelled_call_leaves_no_process(tmp_path: Path) -> None:
    script = write_endless_script(tmp_path)

    async def cancel(client: mcp.Client) -> int:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "trace", {"target": str(script)})
            process = await anyio.to_thread.run_sync(wait_for_start, tmp_path)
            group.cancel_scope.cancel()
        return process

    process = with_client(cancel)
    assert wait_until(lambda: is_gone(process))


@pytest.mark.parametrize("ending", ["close", "SIGKILL"])
def test_an_ended_server_leaves_no_process(ending: str, tmp_path: Path) -> None:
    script = write_endless_script(tmp_path)
    command = [sys.executable, str(COMMAND), "mcp"]
    codes = {"close": 0, "SIGKILL": -9}

    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, cwd=tmp_path) as server:
        for message in messages_to_call("trace", {"target": str(script)}):
            server.stdin.write(json.dumps(message).encode() + b"\n")
            server.stdin.flush()
        process = wait_for_start(tmp_path)

        if ending == "close":
            server.stdin.close()
        else:
            server.send_signal(signal.Signals[ending])

        assert server.wait(600) == codes[ending]
        assert wait_until(lambda: is_gone(process))


def messages_to_call(tool: str, arguments: dict[str, str]) -> list[dict[str, Any]]:
    about = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a test", "version": "1"},
    }
    call = {"name": tool, "arguments": arguments}
    return [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]


def write_endless_script(folder: Path) -> Path:
    script = folder / "endless.py"
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(folder / 'pid')!r}).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    return script


def wait_for_start(folder: Path) -> int:
    pid = folder / "pid"
    assert wait_until(lambda: pid.exists() and pid.read_text(), 600)
    return int(pid.read_text())


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_it_serves_on_standard_input_and_output() -> None:
    command = StdioServerParameters(command=sys.executable, args=[str(COMMAND), "mcp"])
    result = with_client(
        lambda client: client.call_tool("gpus", {"search": "a100"}),
        stdio_client(command),
    )
    cards = json.loads(text_of(result))["cards"]
    assert "a100-80gb" in " ".join(card["id"] for card in cards)
