"""Captures in forks of child processes that have imported TensorFlow once.

The import takes more than half of a small capture; ``fork_worker`` is the other end.
"""

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

from analyzer.capture.process.child_process import Child, make_start_command

_MAX_SERVERS = 2  # at once; each holds all of TensorFlow


class ForkServers(contextlib.AbstractContextManager["ForkServers"]):
    """Fork servers, one for each environment, that end with the ``with`` block.

    There are none outside Linux, because only there a fork can be made to end with its parent.
    ``folder`` holds the simulated card's tools; it is removed if this process is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

        # whether a step has needed the whole memory of a large card
        self.needs_whole_pool = False
        self._servers: dict[frozenset[tuple[str, str]], Child] = {}

    def __exit__(self, *error: object) -> None:
        for server in self._servers.values():
            server.close()

    def start(self, log: Path, environment: Mapping[str, str]) -> Child | None:
        """Return the server for an environment; None if the capture needs a process of its own."""
        key = frozenset(environment.items())
        server = self._servers.get(key)

        if server is not None and not server.has_ended:
            return server

        is_full = server is None and len(self._servers) == _MAX_SERVERS
        if sys.platform != "linux" or is_full:
            return None

        command = make_start_command("process.fork_worker", str(self.folder))
        self._servers[key] = Child(command, log, environment)

        return self._servers[key]
