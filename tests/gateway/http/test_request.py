"""What is refused by its head alone, and in which order."""

import pytest

from tollgate.chains.catalogue import Catalogue
from tollgate.core.methods import Policy
from tollgate.errors import Refusal
from tollgate.gateway.http.request import RequestReader
from tollgate.gateway.messages import Request, ServedNetwork

JSON = {"content-type": "application/json"}
TOKEN = "tg_secret"


def network(family: str, name: str) -> ServedNetwork:
    return ServedNetwork(family, name, Policy(), Catalogue(family), ())


DOOR = RequestReader([network("eth", "mainnet"), network("eth", "sepolia"), network("starknet", "mainnet")], 1_000)


def opened(url: str = "/x/eth/mainnet", method: str = "POST", headers: dict[str, str] | None = None) -> Request:
    sent = {name.encode(): value.encode() for name, value in (JSON if headers is None else headers).items()}
    return DOOR.open(method.encode(), url.encode(), sent, "192.0.2.1")


def refusal(*args: object, **options: object) -> Refusal:
    refused = opened(*args, **options).refusal  # type: ignore[arg-type]
    assert refused is not None
    return refused


@pytest.mark.parametrize(
    "url", ["/x/eth/mainnet", "/x/eth/mainnet/", "/x/eth/mainnet?a=1", "/x/eth/mainnet/?/x/y"]
)
def test_network_is_found(url: str) -> None:
    request = opened(url)
    assert request.refusal is None
    assert request.path_token is None
    assert request.network is not None
    assert request.network.path == "eth/mainnet"


@pytest.mark.parametrize(
    "url", [f"/x/eth/sepolia/{TOKEN}", f"/x/eth/sepolia/{TOKEN}/", f"/x/eth/sepolia/{TOKEN}?q"]
)
def test_token_in_the_path_is_found(url: str) -> None:
    request = opened(url)
    assert request.refusal is None
    assert request.path_token == TOKEN.encode()
    assert request.network is not None
    assert request.network.path == "eth/sepolia"


@pytest.mark.parametrize(
    "url", ["/x/", "/x/eth", "/x/eth/goerli", "/x/eth/MAINNET", "/x//mainnet", "/x/eth/mainnet/a/b"]
)
def test_unknown_network_lists_those_that_exist(url: str) -> None:
    refused = refusal(url)
    assert (refused.reason, refused.status) == ("unknown_network", 404)
    assert refused.data == {"networks": ["/x/eth/mainnet", "/x/eth/sepolia", "/x/starknet/mainnet"]}
    assert "Served here: /x/eth/mainnet, /x/eth/sepolia, /x/starknet/mainnet." in refused.message


def test_nearest_network_is_suggested() -> None:
    assert "Did you mean /x/eth/mainnet?" in refusal("/x/eth/mainet").message


def test_what_stands_behind_an_unknown_network_is_not_repeated() -> None:
    assert TOKEN not in refusal(f"/x/eth/goerli/{TOKEN}").message
    assert TOKEN not in refusal(f"/x/eth/goerli?{TOKEN}").message


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
def test_anything_but_post_is_refused_with_what_is_allowed(method: str) -> None:
    refused = refusal("/x/nowhere", method, {})
    assert (refused.reason, refused.status) == ("method_not_post", 405)
    assert refused.headers == ((b"allow", b"POST, OPTIONS"),)


@pytest.mark.parametrize("url", ["/x/eth/mainnet", "/x/nowhere"])
def test_options_is_never_refused(url: str) -> None:
    assert opened(url, "OPTIONS", {}).refusal is None


@pytest.mark.parametrize(
    "media_type",
    [
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/json;charset=utf-8",
        "application/json ;x",
    ],
)
def test_media_type_is_understood(media_type: str) -> None:
    assert opened(headers={"content-type": media_type}).refusal is None


@pytest.mark.parametrize(
    "media_type", [None, "", "text/plain", "application/jsonx", "application/json, text/plain"]
)
def test_other_media_types_are_refused(media_type: str | None) -> None:
    refused = refusal(headers={} if media_type is None else {"content-type": media_type})
    assert (refused.reason, refused.status) == ("unsupported_media_type", 415)


@pytest.mark.parametrize(("encoding", "fine"), [("identity", True), ("gzip", False), ("br", False)])
def test_compressed_body_is_refused(encoding: str, fine: bool) -> None:
    request = opened(headers={**JSON, "content-encoding": encoding})
    assert (request.refusal is None) is fine
    assert fine or (request.refusal is not None and request.refusal.status == 415)


def test_length_over_the_limit_is_refused() -> None:
    assert opened(headers={**JSON, "content-length": "1000"}).refusal is None
    refused = refusal(headers={**JSON, "content-length": "1001"})
    assert (refused.reason, refused.status) == ("body_too_large", 413)
    assert refused.data == {"limit": 1_000}


def test_checks_come_in_their_order() -> None:
    wrong = {"content-type": "text/plain", "content-length": "5000"}
    assert refusal("/x/nowhere", "PUT", wrong).status == 405
    assert refusal("/x/nowhere", "POST", wrong).status == 404
    assert refusal("/x/eth/mainnet", "POST", wrong).status == 415
    assert refusal("/x/eth/mainnet", "POST", {**wrong, **JSON}).status == 413


@pytest.mark.parametrize("given", ["a", "0f3c-11", "A.b_c:d/e+f=", "x" * 128])
def test_well_formed_request_id_is_taken_over(given: str) -> None:
    assert opened(headers={**JSON, "x-request-id": given}).request_id == given.encode()


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"', "ä", "a,b", "<script>"])
def test_other_request_ids_are_replaced(given: str) -> None:
    made = opened(headers={**JSON, "x-request-id": given}).request_id
    assert made != given.encode()
    assert len(made) == 24


def test_made_request_ids_differ() -> None:
    assert len({opened().request_id for _ in range(100)}) == 100
