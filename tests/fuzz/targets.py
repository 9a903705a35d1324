"""What is fuzzed: functions that take any bytes, and fail only where there is a defect."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw
from tests.gateway.fake_gateway import OPENED, open_gateway
from tests.gateway.fakes import ScriptedLoop, run_pending
from tests.gateway.raw_http import hello
from tests.gateway.websocket.asgi_clients import open_server
from tests.gateway.websocket.raw_clients import Caller

from tollgate.chains import contracts, subscriptions_eth, subscriptions_starknet
from tollgate.chains.access import domain_refusal_of, refusal_of
from tollgate.chains.catalogue import Catalogue
from tollgate.chains.heads import Misread
from tollgate.chains.subscriptions import Head, Wrong
from tollgate.core import cursors, entries, jsonrpc, origins, secrets
from tollgate.core.methods import Policy
from tollgate.core.sealed import BrokenSeal, Seal
from tollgate.core.shapes import WrittenCall
from tollgate.errors import Refusal
from tollgate.gateway.upstream.sticky import METHODS, TeamSeal
from tollgate.ledger import segments
from tollgate.settings.file import SettingsError, load

Target = Callable[[bytes], None]
_HEAD = Head(1, "0x1", "0x0")
_PEPPER = b"p" * 32
_CATALOGUES = [Catalogue(family) for family in ("eth", "starknet", "solana")]
_SEAL, _TEAM = Seal(_PEPPER, "tgc_", 17), TeamSeal(_PEPPER)


def _run(inside: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on a loop without sockets; whatever its callbacks raise is a finding."""
    unhandled: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=ScriptedLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        runner.run(inside())
    # Each gateway has shared memory of its own, and a process may map only so many.
    OPENED.clear()
    assert not unhandled, unhandled


def request(data: bytes) -> None:
    """The request reader: framing, pipelining, trailers, upgrades; split by the first byte."""

    async def inside() -> None:
        gateway = await open_gateway()
        transport = gateway.connect(hello)
        cut = data[0] if data else 0
        for piece in (data[1 : 1 + cut], data[1 + cut :]):
            if piece and not transport.closed:
                transport.deliver(piece)
        await run_pending(40)
        transport.drop()
        await run_pending()
        assert len(transport.written) <= 100_000 + 2_000 * data.count(b"\n"), "more is sent than was requested"

    _run(inside)


def frames(data: bytes) -> None:
    """WebSocket frames, after a good handshake."""

    async def inside() -> None:
        caller = Caller(await open_server())
        await caller.connect()
        if not caller.transport.closed:
            await caller.deliver(data)
        caller.transport.drop()
        await run_pending()

    _run(inside)


def calls(data: bytes) -> None:
    """JSON-RPC requests: what goes on is rebuilt, and holds one method."""
    try:
        parsed = jsonrpc.parse(data, 20)
    except Refusal:
        return
    for call in parsed if isinstance(parsed, list) else [parsed]:
        sent = json.loads(jsonrpc.encode_call(call))
        assert set(sent) == {"jsonrpc", "id", "method", "params"}
        assert sent["method"] == call.method
        for catalogue in _CATALOGUES:
            refusal_of(call.method, catalogue, Policy(deny=("*x*",)))
            known = catalogue.method(call.method)
            refusals = (
                contracts.refusal_of(known, call.params, frozenset({"0x1"})),
                domain_refusal_of(call.method, catalogue, Policy()),
            )
            assert known is not None or None not in refusals
        if call.method in METHODS:
            _TEAM.opened(call, "team_1")
        for family in (subscriptions_eth, subscriptions_starknet):
            if call.method in family.METHODS:
                with suppress(Wrong):
                    family.parse(call.method, call.params)


def answers(data: bytes) -> None:
    """What upstreams answer."""
    for read in (jsonrpc.decode_reply, lambda body: jsonrpc.decode_batch(body, range(3))):
        with suppress(jsonrpc.Unparsable):
            read(data)
    if not _is_text(data):
        # Refused by then.
        return
    for family in (subscriptions_eth, subscriptions_starknet):
        for understand in (family.read_number, family.read_block):
            with suppress(Misread):
                understand(data)
    for each in (subscriptions_eth.read_logs, subscriptions_starknet.read_events):
        with suppress(Misread):
            each(data, _HEAD)
    with suppress(Misread):
        subscriptions_starknet.read_transactions(data, _HEAD)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def origin(data: bytes) -> None:
    """Origins and domains."""
    text = data.decode("utf-8", "replace")
    host = origins.host_of(text, allow_localhost=False)
    if host is not None:
        assert origins.host_of(f"https://{host}", allow_localhost=False) == host
        with suppress(origins.NotARootDomain):
            assert host.endswith(origins.root_domain(host))


def tokens(data: bytes) -> None:
    """Tokens and codes."""
    text = data.decode("latin-1")
    for prefix in ("tg_", "tgp_", "tgs_"):
        secrets.well_formed(text, prefix)
    secrets.plain_code(text)


def cursor(data: bytes) -> None:
    """Cursors, sealed texts and sealed filter ids: none that we did not make is taken."""
    text = data.decode("latin-1")
    with suppress(cursors.BadCursor):
        cursors.read("tokens:team_1", text)
    with suppress(BrokenSeal):
        _SEAL.open("team_1", text)
        raise AssertionError("a text was taken that was never sealed")
    written = Raw(msgspec.json.encode(text))
    opened = _TEAM.opened(WrittenCall("eth_getFilterChanges", [written], None), "team_1").params
    assert isinstance(opened, list)
    assert bytes(opened[0]).startswith(b'"0x7f')


def settings(data: bytes) -> None:
    """A settings file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tollgate.toml"
        path.write_bytes(data)
        with suppress(SettingsError):
            load(path, {})


def segment(data: bytes) -> None:
    """A spool segment and its records."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.seg"
        path.write_bytes(data)
        segments.read_id(path)
        with suppress(segments.Damaged):
            piece = segments.read_piece(path, segments.HEADER_BYTES, 1 << 20)
            for payload in piece.payloads:
                with suppress(msgspec.MsgspecError):
                    entries.decode(payload)


TARGETS: dict[str, Target] = {
    each.__name__: each for each in (request, frames, calls, answers, origin, tokens, cursor, settings, segment)
}
