"""The shape of what Stripe is sent, held against Stripe's own description by stripe-mock, which keeps no state."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from parts.need import need
from parts.ports import accepts, free_port
from parts.processes import running
from tollgate.control.stripe import InvoiceItem, StripeClient, StripeRefused
from tollgate.settings.model import StripeSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stripe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StripeSettings]:
    port = free_port()
    argv = [str(need("stripe-mock")), "-http-addr", f"127.0.0.1:{port}"]
    with running(argv, folder=tmp_path_factory.mktemp("stripe"), ready=lambda _: accepts(port)):
        yield StripeSettings(api_key="sk_test_123", api_url=f"http://127.0.0.1:{port}")


@asynccontextmanager
async def open_client(settings: StripeSettings) -> AsyncIterator[StripeClient]:
    client = StripeClient(settings)
    try:
        yield client
    finally:
        await client.close()


async def test_customers_and_items_have_the_shape_that_stripe_describes(stripe: StripeSettings) -> None:
    async with open_client(stripe) as client:
        customer = await client.create_customer("team_1", "acme", "rep_1")
        assert customer.startswith("cus_")
        item = InvoiceItem(customer, 500, "2,000,000 requests in 2026-11", "TG-1", 1_793_491_200, 1_796_083_200)
        assert (await client.create_item(item, "rep_2")).startswith("ii_")


async def test_another_shape_is_refused_in_stripe_s_words(stripe: StripeSettings) -> None:
    async with open_client(stripe) as client:
        with pytest.raises(StripeRefused, match="Stripe answers 400: Request validation error"):
            await client._post("/v1/invoiceitems", {"customer": "cus_1", "amount": "five dollars"}, "rep_3")


async def test_a_key_that_is_none_is_refused(stripe: StripeSettings) -> None:
    async with open_client(StripeSettings(api_key="nonsense", api_url=stripe.api_url)) as client:
        with pytest.raises(StripeRefused, match="Stripe answers 401"):
            await client.create_customer("team_1", "acme", "rep_4")
