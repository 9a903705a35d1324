"""A client for two calls of Stripe's API, each with an idempotency key; it needs no library of Stripe.

    TollgateError
    ├── StripeRefused   it did nothing; a retry changes nothing until the cause is fixed
    └── StripeUnsure    it is unknown whether it was done: retry with the same key

Invoice items and not meter events: the amount is decided here, to the cent, with caps and free requests, and a
meter would price it a second time without them. An item waits for the customer's next invoice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from tollgate import __version__
from tollgate.errors import TollgateError
from tollgate.lazy_module import LazyModule
from tollgate.settings.model import StripeSettings

if TYPE_CHECKING:
    import httpx
else:
    httpx = LazyModule("httpx")

SECONDS = 20.0
# Stripe remembers a key for at least 24 hours; an hour less, because clocks differ.
KEYS_KEPT_SECONDS = 23 * 3_600.0
_MAX_MESSAGE = 200


class StripeRefused(TollgateError):
    """Stripe did nothing."""


class StripeUnsure(TollgateError):
    """It is unknown whether Stripe did it."""


class InvoiceItem(Struct, frozen=True):
    """The amount that a customer owes for a month."""

    customer: str
    cents: int
    text: str
    number: str
    start: int
    end: int


class Payments(Protocol):
    """What the service needs of Stripe."""

    async def create_customer(self, team_id: str, name: str, key: str, email: str = "") -> str: ...

    async def create_item(self, item: InvoiceItem, key: str) -> str: ...

    async def close(self) -> None: ...


class _Made(Struct, frozen=True):
    id: str


class _StripeError(Struct, frozen=True):
    message: str = ""


class _Failed(Struct, frozen=True):
    error: _StripeError = _StripeError()


class StripeClient:
    """One account at Stripe."""

    def __init__(self, settings: StripeSettings, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = httpx.AsyncClient(
            base_url=settings.api_url,
            timeout=SECONDS,
            follow_redirects=False,
            headers={"Authorization": f"Bearer {settings.api_key}", "User-Agent": f"tollgate/{__version__}"},
            transport=transport,
        )

    def __repr__(self) -> str:
        return "StripeClient(…)"

    async def create_customer(self, team_id: str, name: str, key: str, email: str = "") -> str:
        form = {"name": name, "metadata[tollgate_team]": team_id}
        return await self._post("/v1/customers", form | ({"email": email} if email else {}), key)

    async def create_item(self, item: InvoiceItem, key: str) -> str:
        """Put an item on a customer's next invoice; return its id."""
        form = {
            "customer": item.customer,
            "amount": str(item.cents),
            "currency": "usd",
            "description": item.text,
            "period[start]": str(item.start),
            "period[end]": str(item.end),
            "metadata[tollgate_invoice]": item.number,
        }
        return await self._post("/v1/invoiceitems", form, key)

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, path: str, form: Mapping[str, str], key: str) -> str:
        try:
            answer = await self._http.post(path, data=dict(form), headers={"Idempotency-Key": key})
        except httpx.ConnectError as error:
            raise StripeRefused("Stripe cannot be reached.") from error
        except httpx.HTTPError as error:
            raise StripeUnsure(f"Stripe sent no complete answer: {type(error).__name__}.") from error
        if answer.is_success:
            try:
                return msgspec.json.decode(answer.content, type=_Made).id
            except msgspec.MsgspecError as error:
                raise StripeUnsure("Stripe's answer cannot be read.") from error
        # 409: a request with the same key is in progress.
        if answer.status_code >= 500 or answer.status_code == 409:
            raise StripeUnsure(f"Stripe answers {answer.status_code}.")
        raise StripeRefused(f"Stripe answers {answer.status_code}: {_message(answer.content)}")


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Failed).error.message[:_MAX_MESSAGE] or "without a message"
    except msgspec.MsgspecError:
        return "with a body that is not Stripe's"
