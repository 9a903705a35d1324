"""Deletes what has expired, so that no table grows for ever."""

from __future__ import annotations

from tollgate.control.service_context import ServiceContext
from tollgate.control.services.devices import REMEMBERED_SECONDS
from tollgate.control.services.replays import KEPT_SECONDS
from tollgate.core.people import CONSOLE
from tollgate.store.base import AccountBook

DAY = 86_400.0
EVERY_SECONDS = 60.0


class Sweep:
    """Deletes what has expired."""

    def __init__(self, context: ServiceContext, book: AccountBook | None) -> None:
        self._context = context
        self._book = book

    async def run(self) -> None:
        now = self._context.now()
        is_doubtful = self._book is not None and await self._book.is_doubtful(now)
        async with self._context.store.changing() as records:
            await records.device_logins.remove_older("expires_at", now - REMEMBERED_SECONDS)
            await records.replays.remove_older("created_at", now - KEPT_SECONDS)
            await records.failures.remove_older("created_at", now - DAY)
            await records.reset_links.remove_older("expires_at", now)
            # What cannot be restored is deleted only once the clock can be trusted.
            if is_doubtful:
                return
            await records.invitations.remove_older("expires_at", now)
            await records.logins.remove_older("expires_at", now, kind=CONSOLE)
            await records.logins.remove_older("refresh_until", now)
            kept = self._context.settings.accounts.audit_days
            await records.audit.remove_older("created_at", now - DAY * kept)
