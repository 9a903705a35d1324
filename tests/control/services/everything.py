"""Everything that can be done, done once: what each action recorded, and every secret that was shown or typed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.control.services.harness import ACME, ALL, ELSEWHERE, MINUTE, PASSWORD, PEOPLE, VISIT, Harness

from tollgate.api.billing import BillingChange, SecretRoll
from tollgate.api.domains import DomainChange, NewDomain
from tollgate.api.logs import LogQuery
from tollgate.api.me import EmailLink, NewEmail, NewPersonalToken, PasswordChange, SelfChange
from tollgate.api.members import InvitationLink, NewInvitation, RoleChange
from tollgate.api.operator import TermsChange
from tollgate.api.teams import NewTeam, TeamChange
from tollgate.api.tokens import NewToken, Rotation, TokenChange
from tollgate.api.usage import By, Split, TimelineQuery
from tollgate.control.oidc_rules import ProviderIdentity
from tollgate.control.service_context import OPERATOR, Actor
from tollgate.control.services.timelines import window_of
from tollgate.core.months import month_of
from tollgate.core.people import CONSOLE, PERSONAL, TOOL, AuditEntry

Result = TypeVar("Result")


class Everything:
    """A walk through all services, in an order in which each action finds what it needs."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        harness.choose(sign_up="open")
        self.plane = harness.plane
        self.secrets: list[str] = [PASSWORD]
        self.noted: dict[str, list[AuditEntry]] = {}

    def walk(self) -> None:
        """Do everything."""
        self._operator()
        self._people()
        self._passwords()
        self._addresses()
        self._logins()
        self._devices()
        self._teams()
        self._tokens()
        self._domains()
        self._ledger()
        self._rest()

    def step(self, name: str, work: Coroutine[Any, Any, Result]) -> Result:
        """Do one thing, a second after the one before, and keep what it recorded."""
        self.harness.clock.advance(1)
        before = len(self.harness.notes())
        result = self.harness.do(work)
        self.noted[name] = self.harness.notes()[before:]
        return result

    def typed(self, secret: str) -> str:
        """A secret that a person typed or was shown."""
        self.secrets.append(secret)
        return secret

    def link(self, link: str) -> str:
        return self.typed(link.rpartition("/")[2])

    def actor(self, who: str) -> Actor:
        return self.harness.actor(who)

    # --- The actions -----------------------------------------------------------------------------------

    def _operator(self) -> None:
        admin = self.plane.admin
        password = self.typed("the password of the operators guest")
        self.step("admin.create_account", admin.create_account("made@x.example", password))
        self.step("admin.accounts", admin.accounts(10))
        self.step("admin.switch", admin.switch("made@x.example", active=False))
        self.step("admin.mark", admin.mark(PEOPLE["admin"], operator=True))
        who = self.actor("admin")
        self.step("operator.upstreams", self.plane.operator.upstreams(who))
        self.step("operator.history", self.plane.operator.history(who))
        self.step("operator.processes", self.plane.operator.processes(who))
        self.step("operator.nodes", self.plane.operator.nodes(who))
        self.step("operator.spool", self.plane.operator.spool(who))
        self.step("operator.teams", self.plane.operator.teams(who, ALL))
        self.step("operator.team", self.plane.operator.team(who, "acme"))
        self.step("operator.usage", self.plane.operator.usage(who))
        self.step("operator.team_usage", self.plane.operator.team_usage(who, "acme"))
        self.step("operator.set_terms", self.plane.operator.set_terms(who, "acme", TermsChange(suspended=True)))
        self.harness.do(self.plane.operator.set_terms(who, "acme", TermsChange(suspended=False)))

    def _people(self) -> None:
        accounts, invitations = self.plane.accounts, self.plane.invitations
        self.step("accounts.find", accounts.find("made@x.example"))
        password = self.typed("the password of a person who signs up")
        self.step("invitations.request_link", self.plane.invitations.request_link(VISIT, "ask@x.example"))
        self.link(next(line for line in self.harness.post.posted[-1][2].splitlines() if "/invitations/" in line))
        self.harness.post.open = False
        self.step("accounts.sign_up", accounts.sign_up(VISIT, "up@x.example", password))
        self.harness.post.open = True
        made = self.step(
            "invitations.create_by_operator",
            invitations.create_by_operator(OPERATOR, NewInvitation("in@x.example", "viewer")),
        )
        self.link(made.link)
        self.step("invitations.look", invitations.look(made.link))
        password = self.typed("the password of a person who was invited")
        guest = self.step(
            "accounts.sign_up_invited", accounts.sign_up_invited(VISIT, made.invitation, password, name="Ida")
        )
        self.step(
            "invitations.accept (service)",
            invitations.accept(Actor(guest, None, VISIT), InvitationLink(made.link)),
        )
        self.step("accounts.update", accounts.update(self.actor("viewer"), SelfChange("Vera")))
        claim = ProviderIdentity("https://idp.example", "subject", PEOPLE["viewer"], True, "Vera")
        self.step("accounts.by_provider (known address)", accounts.by_provider(VISIT, claim))
        self.step("accounts.by_provider (known subject)", accounts.by_provider(VISIT, claim))
        claim = ProviderIdentity("https://idp.example", "other", "idp@x.example", True, "Ina")
        self.step("accounts.by_provider (new)", accounts.by_provider(VISIT, claim))

    def _passwords(self) -> None:
        accounts = self.plane.accounts
        self.step("accounts.check_password", accounts.check_password(VISIT, PEOPLE["owner"], PASSWORD))
        new = self.typed("a password that was changed")
        self.step(
            "accounts.change_password",
            accounts.change_password(self.actor("owner"), PasswordChange(PASSWORD, new)),
        )
        self.link(self.step("accounts.reset_link", accounts.reset_link(OPERATOR, PEOPLE["admin"])))
        self.step("accounts.forgot", accounts.forgot(ELSEWHERE, PEOPLE["owner"]))
        mailed = next(text for to, _, text in self.harness.post.posted if to == PEOPLE["owner"])
        secret = self.link(next(line for line in mailed.splitlines() if line.startswith("https:")))
        self.step("accounts.account_of_reset", accounts.account_of_reset(secret))
        password = self.typed("a password that was reset")
        self.step("accounts.reset", accounts.reset(VISIT, secret, password))

    def _addresses(self) -> None:
        changes, who = self.plane.email_changes, self.actor("billing")
        self.step("email_changes.request (mailed)", changes.request(who, NewEmail("new@x.example", "")))
        link = self.link(next(line for line in self.harness.post.posted[-1][2].splitlines() if "/email/" in line))
        self.step("email_changes.confirm", changes.confirm(who, EmailLink(link)))
        self.harness.post.open = False
        self.step("email_changes.request", changes.request(self.actor("billing"), NewEmail(PEOPLE["billing"], "")))
        self.harness.post.open = True

    def _logins(self) -> None:
        logins = self.plane.logins
        cookie = self.typed(
            self.step("logins.open_session", logins.open_session(VISIT, self.harness.account("owner")))
        )
        browser = self.step("logins.actor", logins.actor(VISIT, cookie, CONSOLE))
        login, personal = self.step(
            "logins.new_personal", logins.new_personal(browser, NewPersonalToken("ci", 30))
        )
        self.typed(personal)
        self.harness.do(logins.actor(VISIT, personal, PERSONAL))
        self.step("logins.list", logins.list(browser, ALL))
        self.step("logins.end", logins.end(browser, login.id))

    def _devices(self) -> None:
        devices, logins = self.plane.devices, self.plane.logins
        browser = self.actor("owner")
        denied = self.step("devices.start", devices.start(ELSEWHERE, "owner@laptop"))
        self.step("devices.deny", devices.deny(browser, denied.user_code))
        started = self.harness.do(devices.start(ELSEWHERE, "owner@laptop"))
        for each in (denied, started):
            self.typed(each.device_code)
            self.typed(each.user_code)
            self.typed(each.user_code.replace("-", ""))
        self.step("devices.look", devices.look(browser, started.user_code))
        self.step("devices.approve", devices.approve(browser, started.user_code))
        given = self.step("devices.poll", devices.poll(ELSEWHERE, started.device_code))
        renewed = self.step("logins.refresh", logins.refresh(given.refresh, ELSEWHERE))
        for each_given in (given, renewed):
            self.typed(each_given.access)
            self.typed(each_given.refresh)
        self.harness.do(logins.actor(ELSEWHERE, renewed.access, TOOL))
        self.harness.clock.advance(5 * MINUTE)
        self.step("logins.revoke", logins.revoke(ELSEWHERE, renewed.refresh))

    def _teams(self) -> None:
        teams, invitations = self.plane.teams, self.plane.invitations
        owner = self.actor("owner")
        self.step("teams.create", teams.create(owner, NewTeam("nova")))
        self.step("teams.update", teams.update(owner, "acme", TeamChange("acme-two")))
        self.step("teams.list", teams.list(owner, ALL))
        self.step("teams.show", teams.show(owner, ACME.id))
        self.step("teams.members", teams.members(owner, ACME.id, ALL))
        self.step("teams.set_role", teams.set_role(owner, ACME.id, "mem_viewer", RoleChange("billing")))
        self.step("teams.remove", teams.remove(owner, ACME.id, "mem_viewer"))
        gone = self.step(
            "invitations.create", invitations.create(owner, ACME.id, NewInvitation(PEOPLE["viewer"], "viewer"))
        )
        self.step("invitations.list", invitations.list(owner, ACME.id, ALL))
        self.step("invitations.revoke", invitations.revoke(owner, ACME.id, gone.invitation.id))
        made = self.harness.do(invitations.create(owner, ACME.id, NewInvitation(PEOPLE["loner"], "viewer")))
        self.step("invitations.accept (team)", invitations.accept(self.actor("loner"), InvitationLink(made.link)))
        for each in (gone, made):
            self.link(each.link)

    def _tokens(self) -> None:
        service, owner = self.plane.tokens, self.actor("owner")
        token, secret = self.step("tokens.create", service.create(owner, ACME.id, NewToken("ci")))
        self.typed(secret)
        self.step("tokens.list", service.list(owner, ACME.id, ALL))
        self.step("tokens.show", service.show(owner, ACME.id, token.id))
        changes = TokenChange(name="deploy", methods=("eth_call",))
        self.step("tokens.update", service.update(owner, ACME.id, token.id, changes))
        _, hidden = self.step("tokens.playground", service.playground(owner, ACME.id))
        self.typed(hidden)
        new, secret = self.step("tokens.rotate", service.rotate(owner, ACME.id, token.id, Rotation(60)))
        self.typed(secret)
        self.step("tokens.delete", service.delete(owner, ACME.id, new.id))

    def _domains(self) -> None:
        service, owner = self.plane.domains, self.actor("owner")
        self.harness.proofs.proven.add(("example.com", ACME.id))
        entry = self.step("domains.add", service.add(owner, ACME.id, NewDomain("example.com")))
        self.step("domains.list", service.list(owner, ACME.id, ALL))
        self.step("domains.show", service.show(owner, ACME.id, entry.id))
        self.step("domains.update", service.update(owner, ACME.id, entry.id, DomainChange(active=False)))
        self.step("domains.verify", service.verify(owner, ACME.id, entry.id))
        self.step("domains.check", service.check(owner, ACME.id, "https://app.example.com"))
        self.step("domains.remove", service.remove(owner, ACME.id, entry.id))
        self.harness.do(service.add(self.actor("outsider"), "rival", NewDomain("example.com")))
        self.step("domains.add (take over)", service.add(owner, ACME.id, NewDomain("example.com", take_over=True)))

    def _ledger(self) -> None:
        plane, owner = self.plane, self.actor("owner")
        self.step("logs.page", plane.logs.page(owner, ACME.id, LogQuery()))
        _, wanted = self.step("logs.wanted", plane.logs.wanted(owner, ACME.id, LogQuery()))
        self.step("logs.newest", plane.logs.newest(wanted))
        self.step("logs.fresh", plane.logs.fresh(wanted, 0, 1))
        self.step("timelines.of_team", plane.timelines.of_team(owner, ACME.id))
        window = window_of(TimelineQuery(), self.harness.clock.now)
        self.step("timelines.within", plane.timelines.within(owner, ACME.id, window, Split.NETWORK))
        self.step("usage.within", plane.usage.within(owner, ACME.id, window, By.METHOD))
        self.step("timelines.latency", plane.timelines.latency(owner, ACME.id))
        self.step("networks.list", plane.networks.list())
        self.step("networks.status", plane.networks.status())
        self.step("usage.of_team", plane.usage.of_team(owner, ACME.id))
        self.step("billing.show", plane.billing.show(owner, ACME.id))
        change = BillingChange(spending_cap_micros=5, alert_webhook="https://hooks.example/", alert_emails=False)
        _, secret = self.step("billing.change", plane.billing.change(owner, ACME.id, change))
        assert secret is not None
        self.typed(secret)
        _, rolled = self.step("billing.roll", plane.billing.roll(owner, ACME.id, SecretRoll()))
        self.typed(rolled)
        self.step("invoices.list", plane.invoices.list(owner, ACME.id, ALL))
        self.step("invoices.show", plane.invoices.show(owner, ACME.id, month_of(self.harness.clock.now)))
        self.step("invoices.close_due", plane.invoices.close_due())

    def _rest(self) -> None:
        owner, replays = self.actor("owner"), self.plane.replays
        self.step("audit.of_team", self.plane.audit.of_team(owner, ACME.id, ALL))
        self.step("audit.chain", self.plane.audit.chain(owner, ACME.id, 0, 10))
        self.step("audit.of_self", self.plane.audit.of_self(owner, ALL))
        replay = self.step("replays.begin", replays.begin(owner, "POST /teams", "key", b"{}"))
        self.step("replays.finish", replays.finish(replay, 201, b'{"secret": null}'))
        self.step("replays.abandon", replays.abandon(replay))
        self.step("sweep.run", self.plane.sweep.run())
        self.step("teams.delete", self.plane.teams.delete(owner, "nova"))
        self.step("accounts.delete", self.plane.accounts.delete(self.actor("viewer")))
