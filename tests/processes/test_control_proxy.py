"""Forwarding to the control process: what of a request crosses, what stays behind, and how much at once."""

import asyncio

import pytest
from tests.inner import (
    CHUNKED,
    MAX_BYTES,
    MINE,
    OK,
    SECONDS,
    Client,
    Inner,
    advance,
    problem,
    received_request,
    scope,
    with_inner,
)

from tollgate.processes import control_proxy
from tollgate.processes.control_proxy import AnswerCut
from tollgate.processes.status import Receive, Scope, Send, public_app

# --- What crosses --------------------------------------------------------------------------------------


def test_request_is_rebuilt() -> None:
    async def test(inner: Inner) -> None:
        given_scope = scope(
            "PUT",
            (b"content-length", b"4"),
            (b"accept", b"*/*"),
            MINE,
            (b"cookie", b"a=1"),
            raw_path=b"/api/v1/t%2Fa",
            query_string=b"q=%20&r",
            scheme="https",
        )
        line, headers, body = await received_request(inner, inner.app(), given_scope, b"bo", b"d", b"y")
        assert line == b"PUT /api/v1/t%2Fa?q=%20&r HTTP/1.1"
        assert headers == [
            (b"host", b"rpc.example"),
            (b"accept", b"*/*"),
            (b"cookie", b"a=1"),
            (b"content-length", b"4"),
            MINE,
            (b"x-tollgate-client", b"192.0.2.7"),
            (b"x-tollgate-scheme", b"https"),
        ]
        assert body == b"body"

    with_inner(test)


def test_headers_of_the_connection_stay_behind() -> None:
    async def test(inner: Inner) -> None:
        stay = (
            (b"connection", b"keep-alive, X-Hop, host"),
            (b"x-hop", b"1"),
            (b"keep-alive", b"timeout=5"),
            (b"te", b"trailers"),
            (b"trailer", b"x-sum"),
            (b"transfer-encoding", b"chunked"),
            (b"upgrade", b"h2c"),
            (b"proxy-authorization", b"Basic eDp5"),
            (b"proxy-connection", b"keep-alive"),
            (b"expect", b"100-continue"),
        )
        plain = await received_request(inner, inner.app(), scope("POST", MINE), b"body")
        assert await received_request(inner, inner.app(), scope("POST", *stay, MINE), b"body") == plain

    with_inner(test)


def test_outside_clients_cannot_pose_as_a_worker() -> None:
    async def test(inner: Inner) -> None:
        spoofed = (
            (b"x-tollgate-client", b"127.0.0.1"),
            (b"x-tollgate-scheme", b"https"),
            (b"x-tollgate-anything", b"1"),
            (b"x-forwarded-for", b"127.0.0.1"),
            (b"x-forwarded-proto", b"https"),
            (b"x-forwarded-host", b"evil.example"),
        )
        plain = await received_request(inner, inner.app(), scope("GET", MINE))
        assert await received_request(inner, inner.app(), scope("GET", *spoofed, MINE)) == plain

    with_inner(test)


@pytest.mark.parametrize(
    ("trusted", "host", "proto", "expected"),
    [
        (("192.0.2.7",), b"rpc.example.org", b"https", (b"rpc.example.org", b"https")),
        (
            ("192.0.2.7",),
            b"evil.example, rpc.example.org:8443",
            b"http,https",
            (b"rpc.example.org:8443", b"https"),
        ),
        (("192.0.2.7",), b"a b", b"gopher", (b"rpc.example", b"http")),
        (("192.0.2.7",), b"", b"", (b"rpc.example", b"http")),
        (("192.0.2.8",), b"evil.example", b"https", (b"rpc.example", b"http")),
        ((), b"evil.example", b"https", (b"rpc.example", b"http")),
    ],
)
def test_host_and_scheme_of_a_proxy_are_believed_where_it_is_trusted(
    trusted: tuple[str, ...], host: bytes, proto: bytes, expected: tuple[bytes, bytes]
) -> None:
    async def test(inner: Inner) -> None:
        given_scope = scope("GET", (b"x-forwarded-host", host), (b"x-forwarded-proto", proto))
        _, headers, _ = await received_request(inner, inner.app(*trusted), given_scope)
        assert [value for name, value in headers if name == b"host"] == [expected[0]]
        assert (b"x-tollgate-scheme", expected[1]) in headers

    with_inner(test)


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "expected"),
    [
        ("192.0.2.7", [b"203.0.113.9"], (), b"192.0.2.7"),
        ("192.0.2.7", [b"203.0.113.9"], ("10.0.0.0/8",), b"192.0.2.7"),
        ("10.0.0.1", [b"203.0.113.9"], ("10.0.0.0/8",), b"203.0.113.9"),
        ("10.0.0.1", [b"1.2.3.4, 203.0.113.9, 10.0.0.2"], ("10.0.0.0/8",), b"203.0.113.9"),
        ("10.0.0.1", [b"203.0.113.9", b"10.0.0.2"], ("10.0.0.0/8",), b"203.0.113.9"),
        ("10.0.0.1", [b"[2001:db8::1]:443"], ("10.0.0.0/8",), b"2001:db8::1"),
        ("10.0.0.1", [], ("10.0.0.0/8",), b"10.0.0.1"),
        (None, [], (), b""),
    ],
)
def test_client_address_is_as_the_gateway_sees_it(
    peer: str | None, forwarded: list[bytes], trusted: tuple[str, ...], expected: bytes
) -> None:
    async def test(inner: Inner) -> None:
        headers = [(b"x-forwarded-for", value) for value in forwarded]
        given_scope = scope("GET", *headers, client=None if peer is None else (peer, 1))
        _, got, _ = await received_request(inner, inner.app(*trusted), given_scope)
        assert dict(got)[b"x-tollgate-client"] == expected

    with_inner(test)


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129])
def test_request_id_is_made_where_none_is_given(given: bytes) -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app(), scope("GET", (b"x-request-id", given)))
        call = await inner.next_call()
        (made,) = [value for name, value in call.headers if name == b"x-request-id"]
        assert len(made) == 24
        call.respond(OK)
        assert (b"x-request-id", made) in (await client.answer())[1]

    with_inner(test)


# --- The request's body --------------------------------------------------------------------------------


def test_body_of_the_largest_size_passes() -> None:
    async def test(inner: Inner) -> None:
        body = b"x" * MAX_BYTES
        given_scope = scope("POST", (b"content-length", b"%d" % MAX_BYTES))
        assert (await received_request(inner, inner.app(), given_scope, body[:1], body[1:]))[2] == body

    with_inner(test)


def test_larger_body_is_refused_when_it_turns_out_so() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app(), scope("POST", MINE), body=None)
        client.send(b"x" * MAX_BYTES)
        client.send(b"x")
        headers, sent = await problem(client, 413)
        assert headers[b"x-request-id"] == b"mine-1"
        assert str(MAX_BYTES) in sent["detail"]
        assert b"connection" not in headers
        assert inner.calls.empty()

    with_inner(test)


def test_body_that_is_announced_as_too_large_is_not_read() -> None:
    async def test(inner: Inner) -> None:
        given_scope = scope("POST", (b"content-length", b"%d" % (MAX_BYTES + 1)))
        headers, _ = await problem(Client(inner.app(), given_scope, body=None), 413)
        assert b"connection" not in headers

    with_inner(test)


def test_body_that_takes_too_long_is_refused() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app(), scope("POST"), body=None)
        client.send(b"x")
        await advance(SECONDS - 0.1)
        client.send(b"x")
        await advance(0.0)
        assert not client.task.done()
        await advance(0.1)
        headers, _ = await problem(client, 408)
        assert headers[b"connection"] == b"close"
        assert inner.calls.empty()

    with_inner(test)


def test_client_that_leaves_within_its_body_is_forgotten() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app(), scope("POST"), body=None)
        client.send(b"x")
        client.leave()
        await client.task
        assert client.rest() == []
        assert inner.calls.empty()

    with_inner(test)


# --- How much at once ----------------------------------------------------------------------------------


def test_only_so_many_are_under_way() -> None:
    async def test(inner: Inner) -> None:
        app = inner.app(max_at_once=2)
        under_way = [(Client(app), await inner.next_call()) for _ in range(2)]
        headers, _ = await problem(Client(app), 503)
        assert headers[b"retry-after"] == b"1"
        under_way[0][1].respond(OK)
        assert (await under_way[0][0].answer())[0] == 200
        assert await received_request(inner, app, scope())

    with_inner(test)


def test_one_address_has_a_part_of_the_places_and_others_find_one() -> None:
    async def test(inner: Inner) -> None:
        app = inner.app(max_at_once=12)
        held = [Client(app) for _ in range(3)]
        for _ in held:
            await inner.next_call()
        await problem(Client(app), 503)
        other = Client(app, scope(client=("192.0.2.8", 50_000)))
        (await inner.next_call()).respond(OK)
        assert (await other.answer())[0] == 200
        # Who has one IPv6 address has the whole /64.
        for number in range(3):
            held.append(Client(app, scope(client=(f"2001:db8::{number}", 50_000))))
            await inner.next_call()
        await problem(Client(app, scope(client=("2001:db8::ffff", 50_000))), 503)
        for client in held:
            client.leave()
            await client.task
        assert await received_request(inner, app, scope())

    with_inner(test)


def test_one_network_leaves_places_to_others() -> None:
    async def test(inner: Inner) -> None:
        app = inner.app(max_at_once=12)
        held = [Client(app, scope(client=(f"2001:db8:0:{number}::1", 50_000))) for number in range(5)]
        for _ in held:
            await inner.next_call()
        await problem(Client(app, scope(client=("2001:db8:0:ff::1", 50_000))), 503)
        assert await received_request(inner, app, scope())
        for client in held:
            client.leave()
            await client.task

    with_inner(test)


GOOD = b"HTTP/1.1 200 OK\r\nx-tollgate-known: 1\r\ncontent-length: 2\r\n\r\nok"
SESSION = (b"cookie", b"a=b; __Host-tollgate=secret-1; c=d")
TOKEN = (b"authorization", b"Bearer secret-2")


@pytest.mark.parametrize("shown", [SESSION, TOKEN])
def test_known_client_gets_a_connection_when_unknown_clients_of_many_networks_hold_the_others(
    shown: tuple[bytes, bytes],
) -> None:
    async def test(inner: Inner) -> None:
        app = inner.app(max_at_once=8)
        mine = Client(app, scope("GET", shown))
        (await inner.next_call()).respond(GOOD)
        assert [header for header in (await mine.next())["headers"] if header[0].startswith(b"x-tollgate")] == []
        await mine.task
        guess = (shown[0], shown[1].replace(b"secret", b"guessed"))
        other = Client(app, scope("GET", guess))
        (await inner.next_call()).respond(OK)
        await other.task
        held = [Client(app, scope("GET", guess, client=(f"198.51.{number}.1", 5))) for number in range(6)]
        for _ in held:
            await inner.next_call()
        await problem(Client(app, scope("GET", guess, client=("203.0.113.9", 5))), 503)
        for _ in range(2):
            held.append(Client(app, scope("GET", shown, client=("203.0.113.9", 5))))
            await inner.next_call()
        await problem(Client(app, scope("GET", shown, client=("203.0.113.10", 5))), 503)
        for client in held:
            client.leave()
            await client.task

    with_inner(test)


def test_one_credential_has_two_of_the_places_that_are_kept_and_few_are_remembered() -> None:
    known = control_proxy.Known()
    assert not known.is_preferred(b"a")
    known.begin(b"a")
    known.end(b"a", is_good=True)
    for _ in range(2):
        assert known.is_preferred(b"a")
        known.begin(b"a")
    assert not known.is_preferred(b"a")
    known.end(b"a", is_good=False)
    assert known.is_preferred(b"a")
    for number in range(control_proxy.MAX_KNOWN):
        assert known.is_preferred(b"a")
        known.end(b"%d" % number, is_good=True)
    assert not known.is_preferred(b"a")


def test_open_streams_keep_no_request_out_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_proxy, "MAX_STREAMS", 2)
    events = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    async def test(inner: Inner) -> None:
        app = inner.app(max_at_once=1)
        streams = []
        for _ in range(2):
            streams.append(Client(app))
            (await inner.next_call()).respond(events)
            assert (await streams[-1].next())["status"] == 200
            assert await received_request(inner, app, scope())
        refused = Client(app)
        (await inner.next_call()).respond(events)
        headers, _ = await problem(refused, 503)
        assert headers[b"retry-after"] == b"1"
        for client in streams:
            client.leave()
            await client.task
        last = Client(app)
        (await inner.next_call()).respond(events)
        assert (await last.next())["status"] == 200
        last.leave()
        await last.task

    with_inner(test)


def test_files_that_are_read_slowly_keep_no_request_out_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_proxy, "MAX_DOWNLOADS", 1)
    first_chunk = b"HTTP/1.1 200 OK\r\ncontent-type: text/csv\r\ntransfer-encoding: chunked\r\n\r\n3\r\na,b\r\n"

    async def test(inner: Inner) -> None:
        app = inner.app(max_at_once=1)
        slow = Client(app)
        (await inner.next_call()).respond(first_chunk)
        assert (await slow.next())["status"] == 200
        assert await received_request(inner, app, scope())
        refused = Client(app)
        (await inner.next_call()).respond(first_chunk)
        await problem(refused, 503)
        slow.leave()
        await slow.task

    with_inner(test)


def test_answer_of_a_known_length_is_handed_over_in_one_piece() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        body = b"x" * 300_000
        (await inner.next_call()).respond(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        assert (await client.next())["status"] == 200
        assert await client.next() == {"type": "http.response.body", "body": body, "more_body": False}
        await client.task

    with_inner(test)


def test_place_is_free_again_however_a_request_ends() -> None:
    async def test(inner: Inner) -> None:
        app = inner.app(max_at_once=1)
        client = Client(app)
        (await inner.next_call()).hang_up()
        await problem(client, 502)
        client = Client(app)
        call = await inner.next_call()
        client.leave()
        await client.task
        client = Client(app)
        call = await inner.next_call()
        call.respond(CHUNKED)
        call.hang_up()
        with pytest.raises(AnswerCut):
            await client.task
        assert await received_request(inner, app, scope())

    with_inner(test)


def test_clients_that_send_nothing_keep_no_other_client_out() -> None:
    async def test(inner: Inner) -> None:
        app = inner.app(max_at_once=1)
        idle = [Client(app, scope("POST"), body=None) for _ in range(5)]
        assert await received_request(inner, app, scope("POST"), b"x" * MAX_BYTES)
        for client in idle:
            client.leave()
            await client.task

    with_inner(test)


def test_bodies_that_wait_are_bounded_together() -> None:
    async def test(inner: Inner) -> None:
        app = inner.app(max_at_once=2)
        slow = [Client(app, scope("POST"), body=None) for _ in range(2)]
        for client in slow:
            client.send(b"x" * MAX_BYTES)
        await advance(0.0)
        headers, _ = await problem(Client(app, scope("POST"), body=(b"x",)), 503)
        assert headers[b"retry-after"] == b"1"
        assert await received_request(inner, app, scope())
        slow[0].leave()
        await slow[0].task
        assert await received_request(inner, app, scope("POST"), b"x" * MAX_BYTES)
        slow[1].leave()
        await slow[1].task

    with_inner(test)


# --- Beside it -----------------------------------------------------------------------------------------


def test_public_app_hands_on_all_but_health_and_readiness() -> None:
    async def rest(given_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send(
            {"type": "http.response.body", "body": given_scope["path"].encode() + (await receive())["body"]}
        )

    async def test() -> None:
        app = public_app(lambda: None, rest)
        for path, status in (
            ("/healthz", 200),
            ("/readyz", 200),
            ("/", 299),
            ("/api/v1/x", 299),
            ("/healthz/", 299),
        ):
            got, _, body = await Client(app, scope(path=path), body=(b"!",)).answer()
            assert got == status
            assert status == 200 or body == path.encode() + b"!"

    asyncio.run(test())
