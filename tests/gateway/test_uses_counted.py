"""What counts as a use of a token, and which calls count for its monthly cap."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.gateway.calls import answer, call, say
from tests.gateway.worker import TOKEN, Worker, digest, echo, http, request, token_grant, with_token, with_worker

from tollgate import config
from tollgate.core import secrets
from tollgate.core.methods import Policy
from tollgate.core.models import Grant, Team
from tollgate.errors import BodyTooLarge
from tollgate.store.base import Use

NOON = 1_700_000_000.0
BODY = json.dumps(call(1)).encode()
NOTE = {"jsonrpc": "2.0", "method": "eth_chainId"}
DENIED = call(1, "eth_denied")


def node_error(_: bytes) -> bytes:
    return http(b'{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted"}}')


def nonsense(_: bytes) -> bytes:
    return http(b"<html>")


def in_turn(body: bytes) -> bytes:
    """A node that answers the calls of a batch with a result and an error in turn."""
    ends = ({"result": 1}, {"error": {"code": 3, "message": "execution reverted"}})
    replies = [
        {"jsonrpc": "2.0", "id": each["id"], **ends[place % 2]} for place, each in enumerate(json.loads(body))
    ]
    return http(json.dumps(replies).encode())


@pytest.mark.parametrize(
    ("body", "node", "calls"),
    [
        pytest.param(call(1), echo, 1, id="result"),
        pytest.param(call("a"), echo, 1, id="result under an id that is no number"),
        pytest.param(call(1), node_error, 1, id="node's error"),
        pytest.param(NOTE, echo, 1, id="notification"),
        pytest.param(call(1), nonsense, 0, id="upstream failure"),
        pytest.param(NOTE, nonsense, 0, id="notification, upstream failure"),
        pytest.param(DENIED, echo, 0, id="refused by policy"),
        pytest.param(b"nonsense", echo, 0, id="no JSON"),
        pytest.param([call(1)] * 4, echo, 4, id="batch"),
        pytest.param([call(1), call("a"), NOTE], echo, 3, id="batch with a notification"),
        pytest.param([NOTE, NOTE], echo, 2, id="batch of notifications"),
        pytest.param([call(1)] * 4, in_turn, 4, id="batch with node's errors"),
        pytest.param([call(1), DENIED, 7, call(2)], in_turn, 2, id="batch with everything"),
        pytest.param([DENIED, DENIED], echo, 0, id="batch refused by policy"),
        pytest.param([call(1)] * 4, nonsense, 0, id="batch, upstream failure"),
        pytest.param([call(1)] * 6, echo, 0, id="batch that is too large"),
        pytest.param([], echo, 0, id="empty batch"),
    ],
)
def test_results_and_nodes_errors_count_and_every_request_is_a_use(
    body: object, node: Callable[[bytes], bytes], calls: int
) -> None:
    async def test(worker: Worker) -> None:
        for _ in range(2):
            await say(worker, body)
        await worker.uses.flush()
        assert worker.book.told == [(Use("tok_1", 2 * calls, NOON),)]

    with_worker(test, node=node, policy=Policy((), ("eth_denied",)), limits=config.Limits(batch_calls=5))


@pytest.mark.parametrize(
    "fields",
    [{"networks": ("eth/sepolia",)}, {"methods": ("eth_call",)}, {"capped_until": NOON + 60}],
    ids=["network", "method", "cap"],
)
def test_refusal_by_the_tokens_own_settings_is_a_use_without_calls(fields: dict[str, Any]) -> None:
    async def test(worker: Worker) -> None:
        worker.store.tokens[digest(TOKEN)] = token_grant(**fields)
        await say(worker, call(1))
        await say(worker, [call(1), call(2)])
        await worker.uses.flush()
        assert worker.book.told == [(Use("tok_1", 0, NOON),)]

    with_worker(test)


def test_calls_over_a_limit_do_not_count() -> None:
    async def test(worker: Worker) -> None:
        worker.store.tokens[digest(TOKEN)] = token_grant(Team("team_1", "acme", 3))
        await say(worker, [call(1)] * 2)
        await say(worker, [call(1)] * 2)
        await say(worker, call(1))
        await worker.uses.flush()
        assert worker.book.calls() == {"tok_1": 2}

    with_worker(test)


def test_request_refused_before_its_token_is_accepted_is_no_use() -> None:
    async def test(worker: Worker) -> None:
        too_large = with_token(BODY)
        too_large.refusal = BodyTooLarge()
        in_path = request(BODY)
        in_path.path_token = TOKEN.encode()
        unknown = with_token(BODY, secrets.new_token())
        for asked, status in ((too_large, 413), (in_path, 401), (unknown, 401), (request(BODY), 401)):
            assert (await answer(worker, asked)).status == status
        worker.directory.tokens.clear()
        worker.store.tokens[digest(TOKEN)] = token_grant(expires_at=NOON)
        assert (await answer(worker, with_token(BODY))).status == 401
        await worker.uses.flush()
        assert worker.book.told == []

    with_worker(test)


def test_domains_are_not_noted() -> None:
    async def test(worker: Worker) -> None:
        assert (await answer(worker, request(BODY, origin="https://example.com"))).status == 200
        await worker.uses.flush()
        assert worker.book.told == []

    with_worker(test)


def test_tokens_are_counted_apart() -> None:
    async def test(worker: Worker) -> None:
        other = secrets.new_token()
        grant = token_grant()
        assert grant.token is not None
        worker.store.tokens[digest(other)] = Grant(grant.team, replace(grant.token, id="tok_2"))
        for token in (TOKEN, other, other):
            assert (await answer(worker, with_token(BODY, token))).status == 200
        await worker.uses.flush()
        assert worker.book.calls() == {"tok_1": 1, "tok_2": 2}

    with_worker(test)
