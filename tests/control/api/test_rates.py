"""Rate limits of the API: by credential and by address, expensive requests count for more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests.control.api.caller import Api, reason
from tests.control.services.harness import settings

from tollgate.control.api.operations import OPERATION, Operation
from tollgate.control.api.rates import Rates
from tollgate.control.problems import TooManyRequests
from tollgate.settings.model import LimitSettings

PLANE: Any = SimpleNamespace(
    settings=replace(settings(), limits=LimitSettings(api_per_minute=60, api_address_per_minute=120))
)


def request_of(
    address: str = "192.0.2.1", token: str | None = "a", operation: Operation | None = None, **query: str
) -> Any:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return SimpleNamespace(
        scope={"client": (address, 1), "headers": []},
        headers=headers,
        query_params=query,
        route_handler=SimpleNamespace(opt={} if operation is None else {OPERATION: operation}),
    )


def passed(rates: Rates, **request: Any) -> int:
    """How many requests pass before one is refused."""
    for count in range(1_000):
        try:
            rates.check(cast("Any", request_of(**request)), PLANE)
        except TooManyRequests:
            return count
    raise AssertionError("never refused")


def test_credential_and_address_are_limited_separately() -> None:
    rates = Rates(lambda: 1_000.0)
    assert passed(rates, token="a") == 60
    assert passed(rates, token="b") == 59, "the address has been there, too: the refused one counted for it"
    assert passed(rates, token="c") == 0
    assert passed(rates, address="192.0.2.2", token="c") == 60
    assert passed(rates, address="192.0.2.3", token=None) == 120


def test_addresses_of_one_customer_are_limited_together() -> None:
    rates = Rates(lambda: 1_000.0)
    assert passed(rates, address="2001:db8::1", token=None) == 120
    assert passed(rates, address="2001:db8::ffff:2", token=None) == 0
    assert passed(rates, address="2001:db8:0:1::1", token=None) == 120


def test_allowance_is_restored_with_time() -> None:
    now = 1_000.0
    rates = Rates(lambda: now)
    assert passed(rates) == 60
    with pytest.raises(TooManyRequests) as refused:
        rates.check(request_of(), PLANE)
    assert refused.value.extras == {"retry_after": 1, "limit": "credential"}
    now += 5.0
    assert passed(rates) == 5


def test_expensive_operations_cost_more_and_lists_only_when_they_filter() -> None:
    verify = Operation(id="v", tag="", summary="", cost=20)
    logs = Operation(id="l", tag="", summary="", searched_by=("method",))
    assert passed(Rates(lambda: 0.0), operation=verify) == 3
    assert passed(Rates(lambda: 0.0), operation=logs) == 60
    assert passed(Rates(lambda: 0.0), operation=logs, method="eth_call") == 6
    huge = Operation(id="h", tag="", summary="", cost=10_000)
    assert passed(Rates(lambda: 0.0), operation=huge) == 1


def test_tracked_callers_are_bounded() -> None:
    rates = Rates(lambda: 0.0, max_callers=10)
    for place in range(1_000):
        rates.check(request_of(address=f"10.0.{place // 250}.{place % 250}", token=None), PLANE)
    assert len(rates._arrivals) == 10


def test_unknown_credentials_of_one_address_are_limited_by_it_before_the_store_is_queried(api: Api) -> None:
    api.limit(address=5)
    statuses = [reason(api.request("GET", "/me", token=f"tga_{n}"))[0] for n in range(8)]
    assert statuses == [401] * 5 + [429] * 3


def test_verify_and_filtered_logs_are_expensive(api: Api) -> None:
    api.request("POST", "/teams/acme/domains", json={"domain": "example.com"})
    found = api.request("GET", "/teams/acme/domains").json()["items"][0]["id"]
    api.limit(credential=40)
    path = f"/teams/acme/domains/{found}/verify"
    assert [api.request("POST", path).status_code for _ in range(3)][-1] == 429
    statuses = [api.request("GET", "/teams/acme/logs?errors=true", who="admin").status_code for _ in range(5)]
    assert statuses.count(429) == 1


def test_export_costs_more_than_a_list_and_a_filtered_one_most(api: Api) -> None:
    api.limit(credential=200)
    statuses = [api.request("GET", "/teams/acme/logs/export/csv?errors=true").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    statuses = [api.request("GET", "/teams/acme/logs/export/csv", who="admin").status_code for _ in range(11)]
    assert statuses == [200] * 10 + [429]
