"""The control process's answer in pieces: however it is cut, the client gets the same."""

import gc
import weakref
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tollgate.processes.control_answer import MAX_HEAD_BYTES, ControlAnswer, end_to_end

Outcome = tuple[dict[str, Any] | None, bytes, bool, bool]

PLAIN = b"HTTP/1.1 200 OK\r\nx-empty:\r\nx-a: 1\r\ncontent-length: 5\r\nx-b:  2\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n"
    b"5\r\nhello\r\n1;ext=1\r\n,\r\n6\r\n world\r\n0\r\nx-sum: 9\r\n\r\n"
)


def outcome(*pieces: bytes, to_head: bool = False) -> Outcome:
    """Feed an answer as the forwarding side does, until nothing more is wanted of it."""
    answer = ControlAnswer(to_head=to_head)
    body = b""
    for piece in pieces:
        answer.feed(piece)
        body += answer.take()
        if answer.whole or answer.wrong:
            break
    start = answer.start(b"made") if answer.begun else None
    answer.close()
    return start, body, answer.whole, answer.wrong and not answer.whole


def started(status: int, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [*headers, (b"x-request-id", b"made")],
    }


def test_answer_with_a_length() -> None:
    headers = ((b"x-empty", b""), (b"x-a", b"1"), (b"content-length", b"5"), (b"x-b", b"2"))
    assert outcome(PLAIN) == (started(200, *headers), b"hello", True, False)


def test_chunks_are_decoded_and_trailers_dropped() -> None:
    assert outcome(CHUNKED) == (started(201), b"hello, world", True, False)


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED])
@pytest.mark.parametrize("interim", [b"100 Continue\r\n", b"103 Early Hints\r\nlink: </a>\r\ndate: now\r\n"])
def test_interim_answers_are_skipped(answer: bytes, interim: bytes) -> None:
    assert outcome(b"HTTP/1.1 %b\r\n%b" % (interim, answer)) == outcome(answer)


@pytest.mark.parametrize("behind", [b"x", PLAIN, b"\r\n\r\n", b"\0" * 9])
@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, PLAIN.replace(b"x-a", b"connection: close\r\nx-a")])
def test_what_follows_the_end_is_nobodys(answer: bytes, behind: bytes) -> None:
    assert outcome(answer + behind) == outcome(answer)


@pytest.mark.parametrize("framing", [b"content-length: 5", b"transfer-encoding: chunked", b"x-a: 1"])
def test_answer_to_head_ends_with_its_head(framing: bytes) -> None:
    start, body, whole, _ = outcome(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing, to_head=True)
    assert (body, whole) == (b"", True)
    expected = [tuple(framing.split(b": "))] if b"encoding" not in framing else []
    assert start is not None
    assert start["headers"] == [*expected, (b"x-request-id", b"made")]


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("framing", [b"content-length: 5\r\n", b"content-length: 0\r\n", b""])
def test_no_content_and_not_modified_have_neither_body_nor_length(status: int, framing: bytes) -> None:
    answer = b"HTTP/1.1 %d \r\netag: 1\r\n%b\r\n" % (status, framing)
    assert outcome(answer) == (started(status, (b"etag", b"1")), b"", True, False)


def test_headers_of_the_connection_and_the_date_stay_behind() -> None:
    headers = (
        b"connection: close, X-Hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: Basic\r\n"
        b"upgrade: h2c\r\ndate: now\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\nx-request-id: theirs\r\n"
    )
    start, *_ = outcome(b"HTTP/1.1 200 OK\r\n%bcontent-length: 0\r\n\r\n" % headers)
    assert start is not None
    assert start["headers"] == [
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"x-request-id", b"theirs"),
        (b"content-length", b"0"),
    ]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 600 ?\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nends with its connection",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_HEAD_BYTES,
        b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_HEAD_BYTES // 25 + 1),
    ],
)
def test_nonsense_never_begins(nonsense: bytes) -> None:
    assert outcome(nonsense) == (None, b"", False, True)


def test_nonsense_within_the_body_is_told_after_what_came_before_it() -> None:
    broken = CHUNKED.replace(b"6\r\n world", b"6\r\n world!")
    assert outcome(broken) == (started(201), b"hello, world", False, True)


@pytest.mark.parametrize("end", range(1, len(CHUNKED)))
def test_answer_without_its_end_is_never_whole(end: int) -> None:
    assert not outcome(CHUNKED[:end])[2]


def test_host_is_passed_on_whoever_names_it() -> None:
    given = [
        (b"host", b"a"),
        (b"connection", b" Host ,X-A"),
        (b"x-a", b"1"),
        (b"connection", b"x-b"),
        (b"x-b", b"2"),
    ]
    assert end_to_end(given) == [(b"host", b"a")]


def test_closed_answer_waits_for_no_collector() -> None:
    gc.disable()
    try:
        answer = ControlAnswer(to_head=False)
        answer.feed(PLAIN)
        answer.close()
        left = weakref.ref(answer)
        del answer
        assert left() is None
    finally:
        gc.enable()


# --- However it is cut ---------------------------------------------------------------------------------

TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=12).map(str.encode)
NAMES = st.sampled_from([b"x-a", b"x-b", b"date", b"connection", b"set-cookie", b"x-request-id", b"etag"])


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Answers that are in order, and such that are cut, or bent in one byte."""
    status = draw(st.sampled_from([200, 204, 304, 404, 503]))
    headers = [b"%b: %b\r\n" % each for each in draw(st.lists(st.tuples(NAMES, TEXT), max_size=4))]
    pieces = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4))
    if draw(st.booleans()):
        headers.append(b"transfer-encoding: chunked\r\n")
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        body = b"".join(pieces)
        headers.append(b"content-length: %d\r\n" % len(body))
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    whole = interim + b"HTTP/1.1 %d Fine\r\n%b\r\n%b" % (status, b"".join(headers), body)
    whole += draw(st.sampled_from([b"", b"behind", PLAIN]))
    if draw(st.booleans()):
        whole = whole[: draw(st.integers(0, len(whole)))]
    if whole and draw(st.booleans()):
        at = draw(st.integers(0, len(whole) - 1))
        whole = whole[:at] + draw(st.binary(min_size=1, max_size=1)) + whole[at + 1 :]
    return whole


@given(answers(), st.lists(st.integers(0, 400), max_size=12), st.booleans())
@example(PLAIN, [], False)
@example(CHUNKED, [], False)
@example(b"HTTP/1.1 600 ?\r\ncontent-length: 0\r\n\r\n" + PLAIN, [], False)
def test_pieces_give_what_the_whole_gives(answer: bytes, cuts: list[int], to_head: bool) -> None:
    slots = [0, *sorted(cut for cut in cuts if cut < len(answer)), len(answer)]
    pieces = [answer[a:b] for a, b in pairwise(slots)]
    expected = outcome(answer, to_head=to_head)
    assert outcome(*pieces, to_head=to_head) == expected
    assert outcome(*(answer[at : at + 1] for at in range(len(answer))), to_head=to_head) == expected
