"""WebSockets under `/x/`, as an ASGI app: who may open one, how many, and for how long.

The same address and the same credentials as a POST; a browser, which can set no header, offers its token as a
sub-protocol. A refused client without an Origin sees the HTTP status; a browser cannot, so it is accepted, sent
the refusal in one message, and closed. Grants are checked continuously: who loses one loses its connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tollgate.core import jsonrpc
from tollgate.core.address_shares import AddressShares, limit_key, network_of
from tollgate.errors import Overloaded, RateLimited, Refusal
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.feeds.feed import Feeds
from tollgate.gateway.feeds.subscribers import FAMILIES
from tollgate.gateway.http import response
from tollgate.gateway.http.outbox import Answered, Outgoing
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.messages import Request, ServedNetwork
from tollgate.gateway.websocket.connection import CLOSE_SECONDS
from tollgate.gateway.websocket.grants import Grants, check_network
from tollgate.gateway.websocket.outbox import Send
from tollgate.gateway.websocket.session import TRY_LATER, Receive, SocketSession
from tollgate.gateway.websocket.subscriptions import (
    PREFIX_CALLERS,
    TEAM_CALLERS,
    CallerUse,
    SocketPipeline,
)
from tollgate.settings.model import WebSocketSettings
from tollgate.shm import metrics

Scope = dict[str, Any]

# How often grants are looked at again.
CHECK_SECONDS = 0.4
# What remains of the grace for goodbyes.
_GOODBYE_SECONDS = 1.5

PROTOCOL, TOKEN_PROTOCOL = "tollgate", "tollgate.token."
# All that messages need of the handshake.
_KEPT = frozenset({b"authorization", b"origin", b"user-agent", b"x-forwarded-for", b"x-request-id"})
_CODES = {401: 4401, 403: 4403, 404: 4404, 429: 4429, 500: 1011}


class Endpoint:
    """All WebSockets of a worker."""

    def __init__(
        self,
        context: WorkerContext,
        pipeline: SocketPipeline,
        credentials: Credentials,
        feeds: Feeds,
        writer: metrics.Writer,
        settings: WebSocketSettings,
        *,
        grace_seconds: float,
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self._credentials = credentials
        self._feeds = feeds
        self._writer = writer
        self._settings = settings
        self._grace_seconds = grace_seconds
        self._open: dict[SocketSession, tuple[tuple[str, ...], str, str]] = {}
        """Open connections, with what they are counted by: names of uses, the domain's id and the client address,
        which are empty for tokens."""
        self._uses: dict[str, CallerUse] = {}
        self._of_domain: dict[str, AddressShares] = {}
        """Open connections of domains, by client address. An Origin can be forged, an address hardly."""
        self._refused = 0
        """Browsers that were sent their refusal, and may still be connected."""
        self._grants = Grants(credentials, self._lost)
        self._stopping = False
        self._gauge = writer.cell(metrics.WS_CONNECTIONS)

    def change(self, settings: WebSocketSettings) -> None:
        """Take over settings; connections stay."""
        self._settings = settings
        for use in self._uses.values():
            use.bound(settings)

    # --- The handshake ---------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers, url = _headers(scope), scope["raw_path"]
        client = scope.get("client")
        request = self._context.reader.open(b"POST", url, headers, client[0] if client else "")
        request.started = self._context.now()
        accept = {
            "type": "websocket.accept",
            "headers": [(b"x-request-id", request.request_id)],
            "max_bytes": self._context.max_bytes,
        }
        if PROTOCOL in scope["subprotocols"]:
            accept["subprotocol"] = PROTOCOL
        try:
            caller = await self._admit(request)
        except Refusal as refusal:
            await self._refuse(request, refusal, accept, send)
            return
        conversation = self._conversation(request, url, caller)
        try:
            await send(accept)
            await conversation.run(receive, send)
        except OSError:
            # Gone before it was let in.
            return
        finally:
            self._forget(conversation)

    async def _admit(self, request: Request) -> Caller:
        if request.refusal is not None:
            raise request.refusal
        caller = self._credentials.recall(request)
        if caller is None:
            caller = await self._credentials.look_up(request)
        request.caller = caller
        check_network(caller, request)
        if self._stopping or self._context.draining:
            raise Overloaded("The service stops: try again.")
        if len(self._open) >= self._settings.connections:
            raise Overloaded("Too many WebSockets are open: try again later.")
        use, team = self._uses.get(self._names(request, caller)[0]), self._uses.get(caller.team_id)
        of_caller, of_team = use.connections if use else 0, team.connections if team else 0
        # So that the next team finds a place, however many tokens this one has.
        if of_caller >= self._settings.connections_per_caller or of_team >= self._settings.connections - len(
            self._open
        ):
            raise _too_many_open(max(of_caller, of_team))
        if caller.grant.domain is not None:
            shares = self._shares(caller.source_id)
            if not shares.has_room(self._credentials.address(request)):
                raise _too_many_open(shares.taken)
        return caller

    def _names(self, request: Request, caller: Caller) -> tuple[str, ...]:
        """Under which a caller's connections and subscriptions are counted, narrowest first, the team's last."""
        if caller.grant.domain is None:
            return caller.source_id, caller.team_id
        address = self._credentials.address(request)
        around = (f"{caller.source_id} {each}" for each in (limit_key(address), network_of(address)))
        return *around, caller.team_id

    def _shares(self, domain_id: str) -> AddressShares:
        """The open connections of a domain, by client address."""
        whole, share = self._settings.connections_per_domain, self._settings.connections_per_caller
        shares = self._of_domain.get(domain_id) or AddressShares(whole, share)
        shares.whole, shares.share = whole, share
        return shares

    async def _refuse(self, request: Request, refusal: Refusal, accept: Scope, send: Send) -> None:
        answer = self._pipeline.refuse(request, refusal)
        self._context.counters.answered(request, answer.status)
        if request.caller is not None:
            request.status = answer.status
            await _written(self._context, request)
        if request.origin is None or self._refused >= self._settings.connections:
            lines = [
                *refusal.headers,
                (b"content-type", b"application/json"),
                (b"x-request-id", request.request_id),
            ]
            await send({"type": "websocket.http.response.start", "status": answer.status, "headers": lines})
            await send({"type": "websocket.http.response.body", "body": answer.body})
            return
        self._refused += 1
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._refused_is_gone)
        await send(accept)
        await send({"type": "websocket.send", "text": answer.body.decode()})
        await send({"type": "websocket.close", "code": _code(refusal), "reason": refusal.reason})

    def _refused_is_gone(self) -> None:
        self._refused -= 1

    def _conversation(self, request: Request, url: bytes, caller: Caller) -> SocketSession:
        network = request.network
        assert network is not None  # noqa: S101 - refused otherwise
        names = self._names(request, caller)
        use = self._use(names)
        conversation = SocketSession(
            self._context,
            self._pipeline,
            request,
            url,
            self._feeds.feed(network.path) if network.family in FAMILIES else None,
            max_queued=self._settings.queue_bytes,
            max_subscriptions=self._settings.subscriptions,
            use=use,
            caller=caller,
            on_notified=self._counter(network),
            on_cut=self._cut,
        )
        of_domain = caller.grant.domain is not None
        domain_id, address = (caller.source_id, self._credentials.address(request)) if of_domain else ("", "")
        self._open[conversation] = names, domain_id, address
        if of_domain:
            self._of_domain[domain_id] = self._shares(domain_id)
            self._of_domain[domain_id].take(address)
        for name in names:
            self._uses[name].connections += 1
        self._grants.add(conversation)
        self._writer.set(self._gauge, len(self._open))
        return conversation

    def _use(self, names: tuple[str, ...]) -> CallerUse:
        """What a caller has open, within what its prefix and its team have."""
        found: CallerUse | None = None
        callers = (1, *((PREFIX_CALLERS,) if len(names) > 2 else ()), TEAM_CALLERS)
        for name, count in zip(reversed(names), reversed(callers), strict=True):
            if name not in self._uses:
                self._uses[name] = CallerUse(found, self._settings, count)
            found = self._uses[name]
        assert found is not None  # noqa: S101 - there are names
        return found

    def _forget(self, conversation: SocketSession) -> None:
        names, domain_id, address = self._open.pop(conversation)
        self._grants.discard(conversation)
        if domain_id:
            shares = self._of_domain[domain_id]
            shares.give_back(address)
            if not shares.taken:
                del self._of_domain[domain_id]
        for each in names:
            use = self._uses[each]
            use.connections -= 1
            if not use.connections:
                del self._uses[each]
        self._writer.set(self._gauge, len(self._open))

    # --- Metrics ---------------------------------------------------------------------------------------

    def _counter(self, network: ServedNetwork) -> Callable[[], None]:
        cell, cells = self._writer.cell(metrics.WS_NOTIFICATIONS, network.family, network.name), self._writer.cells

        def count() -> None:
            cells[cell] += 1

        return count

    def _cut(self, why: str) -> None:
        self._writer.add(self._writer.cell(metrics.WS_CUT, why))

    # --- The end ---------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Close the connections of those whose grant has ended."""
        await self._grants.check()

    def _lost(self, conversation: SocketSession, refusal: Refusal) -> None:
        if conversation.ending:
            return
        self._cut("grant")
        self._context.counters.refused(refusal)
        words = response.error_body(conversation.opened, refusal, jsonrpc.NULL)
        conversation.close(_code(refusal), refusal.reason, words, drop=True)

    def stop(self) -> None:
        """Begin to stop: calls under way are answered, then connections are closed."""
        if self._stopping:
            return
        self._stopping = True
        asyncio.get_running_loop().call_later(max(0.0, self._grace_seconds - _GOODBYE_SECONDS), self._stop_now)
        for conversation in list(self._open):
            if not conversation.ending:
                self._cut("stop")
            conversation.stop()

    def _stop_now(self) -> None:
        for conversation in list(self._open):
            conversation.stop_now()


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """What messages need of the handshake, as a POST would have it."""
    kept: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _KEPT:
            # Joined as in RFC 9110 (5.3): a doubled Authorization or Origin thus matches nothing.
            kept[name] = b"%b,%b" % (kept[name], value) if name in kept else value
    if b"authorization" not in kept:
        tokens = [each for each in scope["subprotocols"] if each.startswith(TOKEN_PROTOCOL)]
        if tokens:
            kept[b"authorization"] = b"Bearer " + tokens[0].removeprefix(TOKEN_PROTOCOL).encode("latin-1")
    kept[b"content-type"] = b"application/json"
    return kept


def _too_many_open(count: int) -> RateLimited:
    return RateLimited(f"{count} WebSockets are open already: close some first.", data={"limit": "connections"})


def _code(refusal: Refusal) -> int:
    return _CODES.get(refusal.status, TRY_LATER)


class _Departure:
    """Waits for the records of this turn to be written."""

    def __init__(self) -> None:
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self, _answer: Outgoing) -> None:
        if not self.written.done():
            self.written.set_result(None)


async def _written(context: WorkerContext, request: Request) -> None:
    departure = _Departure()
    context.outbox.put(Answered(departure, b"", request))
    await departure.written
