"""What Stripe is sent, and what its answers mean. Its own server sees the shape in tests/e2e/test_stripe.py."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs

import httpx
import pytest

from tollgate.control.stripe import InvoiceItem, StripeClient, StripeRefused, StripeUnsure
from tollgate.settings.model import StripeSettings

ITEM = InvoiceItem("cus_1", 500, "2,000,000 requests in 2026-11 (TG-1)", "TG-1", 1_793_491_200, 1_796_083_200)
KEY = "sk_test_secret"


async def report(answer: Callable[[httpx.Request], httpx.Response]) -> str:
    client = StripeClient(StripeSettings(api_key=KEY), transport=httpx.MockTransport(answer))
    try:
        return await client.create_item(ITEM, "rep_1")
    finally:
        await client.close()


async def test_an_item_is_a_form_with_a_key_and_a_bearer() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"id": "ii_1", "object": "invoiceitem"})

    assert await report(answer) == "ii_1"
    (request,) = seen
    assert (request.method, str(request.url)) == ("POST", "https://api.stripe.com/v1/invoiceitems")
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.headers["Idempotency-Key"] == "rep_1"
    assert {name: values[0] for name, values in parse_qs(request.content.decode()).items()} == {
        "customer": "cus_1",
        "amount": "500",
        "currency": "usd",
        "description": ITEM.text,
        "period[start]": "1793491200",
        "period[end]": "1796083200",
        "metadata[tollgate_invoice]": "TG-1",
    }


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 429])
async def test_a_refusal_is_one_with_stripe_s_words(status: int) -> None:
    with pytest.raises(StripeRefused, match=f"Stripe answers {status}: No such customer"):
        await report(lambda _: httpx.Response(status, json={"error": {"message": "No such customer"}}))


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error":{}}', b"[]"])
async def test_a_refusal_in_other_words_is_one_too(body: bytes) -> None:
    with pytest.raises(StripeRefused):
        await report(lambda _: httpx.Response(400, content=body))


@pytest.mark.parametrize(
    "response", [httpx.Response(500), httpx.Response(503), httpx.Response(409), httpx.Response(200, content=b"{}")]
)
async def test_unclear_response_leaves_the_outcome_unknown(response: httpx.Response) -> None:
    with pytest.raises(StripeUnsure):
        await report(lambda _: response)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.ConnectError("refused"), StripeRefused),
        (httpx.ReadTimeout("slow"), StripeUnsure),
        (httpx.RemoteProtocolError("broke"), StripeUnsure),
    ],
)
async def test_only_an_unsent_request_is_certainly_not_done(error: Exception, kind: type[Exception]) -> None:
    def broken(_: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(kind) as caught:
        await report(broken)
    assert KEY not in str(caught.value)


async def test_the_key_is_in_no_repr() -> None:
    settings = StripeSettings(api_key=KEY)
    client = StripeClient(settings)
    assert KEY not in f"{settings!r} {client!r}"
    await client.close()
