"""The command `python -m tollgate.demo.node`: one simulated node by itself, for tests and for trying things out.

Prints one line of JSON, its addresses, when it listens; ends on SIGTERM or SIGINT. Several nodes with the same
seed, genesis and block time have the same chain; with the same folder for `--shared` they also have in common
what is done to it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tollgate.demo.chain import BLOCK_SECONDS, genesis_before
from tollgate.demo.node import FAMILIES, SimulatedNode, networks
from tollgate.demo.session import QUEUE_BYTES
from tollgate.demo.ws_protocol import NodeProtocol
from tollgate.errors import StartError
from tollgate.processes import listeners
from tollgate.processes.serving import ServerProcess, serve
from tollgate.processes.supervisor import Lifeline

_LONGEST_BLOCK_SECONDS = 3_600.0


def main(arguments: list[str] | None = None) -> int:
    """Run a node until told to stop; return the exit code."""
    given = _parser().parse_args(arguments)
    if not 0 <= given.block_seconds <= _LONGEST_BLOCK_SECONDS:
        sys.stderr.write(f"--block-seconds is a number from 0 to {_LONGEST_BLOCK_SECONDS:g}\n")
        return 2
    try:
        _run(given)
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tollgate.demo.node",
        description="Run one simulated node until SIGTERM.",
        epilog="Calls of the methods demo_… make it lag, fail, crawl or reorganise: see docs/upstreams.md.",
    )
    add = parser.add_argument
    add("--family", choices=FAMILIES, help="serve only this family's networks")
    add("--host", default="127.0.0.1")
    add("--port", type=_whole(65_535), default=0, help="0, the default, takes any that is free")
    add("--seed", type=int, default=0, help="nodes with different seeds have different chains")
    add("--genesis", type=int, help="Unix time of block 0; unless given, 5,000 blocks before today (UTC)")
    add("--block-seconds", type=float, default=BLOCK_SECONDS, help="0: blocks only arise by demo_mine")
    add("--shared", type=Path, metavar="FOLDER", help="where nodes keep what is done to the chain they share")
    add("--lag", type=_whole(1 << 31), default=0, metavar="BLOCKS", help="stay behind the chain")
    add("--queue-bytes", type=int, default=QUEUE_BYTES, help="what a WebSocket client may leave unread")
    return parser


def _whole(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) > most:
            raise argparse.ArgumentTypeError(f"{text}: a whole number from 0 to {most} is needed")
        return int(text)

    return read


def _run(given: argparse.Namespace) -> None:
    genesis = genesis_before(time.time(), given.block_seconds) if given.genesis is None else given.genesis
    if given.shared is not None:
        given.shared.mkdir(parents=True, exist_ok=True)
    served = networks(
        genesis,
        families=(given.family,) if given.family else FAMILIES,
        block_seconds=given.block_seconds,
        seed=given.seed,
        shared=given.shared,
    )
    for network in served.values():
        network.lag = given.lag
    bound = listeners.bind(given.host, given.port, 1, "--port")[0]
    url = listeners.url("http", bound)
    # The terminal's Ctrl-C ends it as SIGTERM does.
    signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))

    async def make() -> ServerProcess:
        app = SimulatedNode(time.time, served=served, control=True, queue_bytes=given.queue_bytes)
        return ServerProcess(app, http=NodeProtocol)

    reading, writing = os.pipe()
    try:
        serve(make, [bound], _Ready(reading, lambda: _tell(url, list(served), genesis)), grace_seconds=1.0)
    finally:
        bound.close()
        os.close(reading)
        os.close(writing)


class _Ready(Lifeline):
    """In the place of a parent's watch: the first beat says that the node is ready."""

    def __init__(self, parent_pipe: int, tell: Callable[[], None]) -> None:
        beats = memoryview(bytearray(8)).cast("d")
        super().__init__(parent_pipe, beats, beats, 0)
        self._tell: Callable[[], None] | None = tell

    def beat(self) -> None:
        """Say so once."""
        if self._tell is not None:
            self._tell()
            self._tell = None


def _tell(url: str, paths: list[str], genesis: int) -> None:
    line = {
        "url": url,
        "networks": {path[1:]: url + path for path in paths},
        "genesis": genesis,
        "pid": os.getpid(),
    }
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()
