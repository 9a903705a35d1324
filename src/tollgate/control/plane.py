"""All services over one store, for the API, the console and the operator's commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tollgate.control.mail import Mailer
from tollgate.control.outbound import DnsResolver, Fetcher
from tollgate.control.passwords import Passwords
from tollgate.control.proofs import Proofs
from tollgate.control.service_context import ServiceContext
from tollgate.control.services.accounts import Accounts
from tollgate.control.services.admin import Admin
from tollgate.control.services.alerts import Alerts
from tollgate.control.services.audit import Audit
from tollgate.control.services.billing import BillingService
from tollgate.control.services.devices import Devices
from tollgate.control.services.domains import Domains
from tollgate.control.services.email_changes import EmailChanges
from tollgate.control.services.factors import SecondFactors
from tollgate.control.services.invitations import Invitations
from tollgate.control.services.invoices import Invoices
from tollgate.control.services.logins import Logins
from tollgate.control.services.logs import LogService
from tollgate.control.services.networks import TeamNetworks
from tollgate.control.services.operator import Inspector, Operator
from tollgate.control.services.replays import Replays
from tollgate.control.services.reports import Reports
from tollgate.control.services.sweep import Sweep
from tollgate.control.services.teams import Teams
from tollgate.control.services.timelines import Timelines
from tollgate.control.services.tokens import TokenService
from tollgate.control.services.usage import Usages
from tollgate.control.stripe import StripeClient
from tollgate.lazy_module import LazyModule
from tollgate.settings.model import Settings
from tollgate.store.base import AccountBook, ControlStore, LogBook

if TYPE_CHECKING:
    from tollgate.control import oidc
else:  # authlib's imports take 90 ms, and only installations with a provider need them
    oidc = LazyModule("tollgate.control.oidc")

OIDC_PATH = "/console/oidc/callback"


class ControlPlane:
    """All services, over one store."""

    def __init__(
        self,
        store: ControlStore,
        settings: Settings,
        pepper: bytes,
        base_url: str,
        now: Callable[[], float],
        *,
        proofs: Proofs | None = None,
        logbook: LogBook | None = None,
        accountbook: AccountBook | None = None,
        previous_pepper: bytes | None = None,
        factor_key: bytes | None = None,
        audit_key: bytes = b"",
        inspector: Inspector | None = None,
    ) -> None:
        self.settings = settings
        self.base_url = base_url
        self.context = ServiceContext(store, settings, pepper, base_url, now, previous_pepper, audit_key)
        self.mailer = Mailer(settings.mail)
        passwords = Passwords()
        self.accounts = Accounts(self.context, passwords, self.mailer)
        self.email_changes = EmailChanges(self.context, self.accounts, self.mailer)
        self.logins = Logins(self.context)
        self.factors = SecondFactors(self.context, factor_key, pepper, previous_pepper)
        self.devices = Devices(self.context, self.logins)
        self.teams = Teams(self.context)
        self.admin = Admin(self.context, passwords, self.accounts, self.teams)
        self.invitations = Invitations(self.context, self.teams, self.mailer)
        self.tokens = TokenService(self.context)
        self.domains = Domains(self.context, proofs or _proofs(settings), self.mailer)
        self.audit = Audit(self.context)
        self._logbook = logbook
        self.logs = LogService(self.context, logbook, pepper)
        self._accountbook = accountbook
        self.usage = Usages(self.context, accountbook)
        self.timelines = Timelines(self.context, accountbook)
        self.networks = TeamNetworks(self.context)
        self.operator = Operator(self.context, self.networks, accountbook, inspector)
        self.billing = BillingService(self.context, pepper, accountbook, previous_pepper)
        self.invoices = Invoices(self.context, accountbook)
        self.alerts = Alerts(self.context, accountbook, self.billing, self.mailer, _caller(settings))
        self._payments = StripeClient(settings.stripe) if settings.stripe.api_key else None
        self.reports = Reports(self.context, accountbook, self._payments) if self._payments else None
        self.replays = Replays(self.context)
        self.sweep = Sweep(self.context, accountbook)
        self.oidc = oidc.OidcClient(settings.oidc, base_url + OIDC_PATH, now=now) if settings.oidc.issuer else None

    def change(self, settings: Settings) -> None:
        """Apply settings that changed without a restart: the networks."""
        self.settings = self.context.settings = settings

    async def close(self) -> None:
        await self.mailer.close()
        if self.oidc is not None:
            await self.oidc.close()
        if self._payments is not None:
            await self._payments.close()
        await self.context.store.close()
        if self._logbook is not None:
            await self._logbook.close()
        if self._accountbook is not None:
            await self._accountbook.close()


def _proofs(settings: Settings) -> Proofs:
    whitelist = settings.whitelist
    resolver = DnsResolver(whitelist.resolvers)
    fetcher = Fetcher(resolver, allow_private=whitelist.allow_private_addresses, port=whitelist.well_known_port)
    return Proofs(resolver, fetcher)


def _caller(settings: Settings) -> Fetcher:
    """The fetcher for webhooks, under the rules of every other fetch."""
    allow_private = settings.billing.allow_private_webhooks
    return Fetcher(DnsResolver(settings.whitelist.resolvers), allow_private=allow_private)
