"""Many open connections: each makes one call and stays, while something is weighed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from bench.plan import BenchError, Body

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.load import Subject

T = TypeVar("T")
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

AT_ONCE = 200  # under the listen backlog, and within the pool of upstream connections
TIMEOUT = 20.0
SETTLE_SECONDS = 0.5


def hold(subject: Subject, body: Body, count: int, weigh: Callable[[], T]) -> T:
    """Open `count` connections, make one call on each, and call `weigh` while all of them are open."""
    return asyncio.run(_hold(subject, body, count, weigh))


async def _hold(subject: Subject, body: Body, count: int, weigh: Callable[[], T]) -> T:
    request = _request(subject, body)
    gate = asyncio.Semaphore(AT_ONCE)
    crowd: list[Connection] = []
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(_join(subject.port, request, gate, crowd))
        await asyncio.sleep(SETTLE_SECONDS)
        left = sum(reader.at_eof() for reader, _ in crowd)
        if left:
            raise BenchError(f"{subject.name} closed {left} of {count} connections")
        return weigh()
    except* (OSError, asyncio.IncompleteReadError, ValueError) as failed:
        raise BenchError(f"{len(crowd)} of {count} connections: {failed.exceptions[0]!r}") from None
    finally:
        for _, writer in crowd:
            writer.close()


async def _join(port: int, request: bytes, gate: asyncio.Semaphore, crowd: list[Connection]) -> None:
    async with gate, asyncio.timeout(TIMEOUT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        crowd.append((reader, writer))
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200 "):
            raise ValueError(f"answered {head[:100]!r}")
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))


def _request(subject: Subject, body: Body) -> bytes:
    headers = subject.headers() | {"Host": f"127.0.0.1:{subject.port}", "Content-Length": str(len(body.text))}
    lines = [
        f"POST {subject.paths[body.name]} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n" + body.text).encode()
