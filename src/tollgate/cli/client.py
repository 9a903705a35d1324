"""The typed client of the management API: one method for each route that the tool uses.

Owns routes, bodies, idempotency keys and the one renewal of a refused access token. Sockets are in
`transport.py`, credentials in `login.py`, the meaning of answers in `answers.py`; it prints nothing.
"""

from __future__ import annotations

import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from tollgate.cli import answers
from tollgate.cli.failures import Lost, NoServer, WrongUsage
from tollgate.cli.money import Billing, Invoice, Usage
from tollgate.cli.shapes import (
    Account,
    AuditEntry,
    Check,
    Domain,
    Invitation,
    Login,
    LogPage,
    Member,
    Page,
    Team,
    Token,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tollgate.cli import login
    from tollgate.cli.answers import ApiAnswer
    from tollgate.cli.transport import HttpReply, Transport

T = TypeVar("T")

BASE = "/api/v1"
DEFAULT_LIMIT = 100
LARGEST_LIMIT = 1000

# Far above the members that a team may have; a server that never ends its list must not keep us for ever.
_MAX_PAGES = 100

_LOGIN_REFUSALS = frozenset({"not_logged_in", "login_expired"})


class Client:
    """The API of one server, as one login sees it."""

    def __init__(self, transport: Transport, login: login.Login) -> None:
        self._transport = transport
        self._login = login

    # ---- oneself

    def me(self) -> ApiAnswer[Account]:
        """Give one's own account."""
        return self._read("GET", Account, "me")

    def logins(self, limit: int = DEFAULT_LIMIT, after: str | None = None) -> ApiAnswer[Page[Login]]:
        """List one's own logins and personal access tokens."""
        return self._read("GET", Page[Login], "me", "logins", query=_page(limit, after))

    def every_login(self) -> Iterator[Login]:
        """Go through all logins of one's own."""
        return _every(lambda after: self.logins(LARGEST_LIMIT, after))

    def end_login(self, login_id: str) -> None:
        """End a login, or delete a personal access token."""
        self._done("DELETE", "me", "logins", login_id)

    def create_personal_token(self, body: Mapping[str, Any]) -> ApiAnswer[Login]:
        """Make a personal access token."""
        return self._create(Login, body, "me", "tokens")

    def change_password(self, current: str, new: str) -> None:
        """Change one's own password."""
        self._done("POST", "me", "password", body={"current": current, "new": new})

    def accept_invitation(self, link: str) -> ApiAnswer[Team] | None:
        """Join the team that an invitation is for; None where it was to the service alone."""
        reply = self._ask("POST", ("invitations", "accept"), None, {"link": link})
        return None if reply.status == HTTPStatus.NO_CONTENT else answers.read(reply, Team, self._transport.url)

    # ---- teams

    def teams(self, limit: int = DEFAULT_LIMIT, after: str | None = None) -> ApiAnswer[Page[Team]]:
        """List one's own teams."""
        return self._read("GET", Page[Team], "teams", query=_page(limit, after))

    def create_team(self, name: str) -> ApiAnswer[Team]:
        """Make a team, as its owner."""
        return self._create(Team, {"name": name}, "teams")

    def team(self, team: str) -> ApiAnswer[Team]:
        """Give a team."""
        return self._read("GET", Team, "teams", team)

    def rename_team(self, team: str, name: str) -> ApiAnswer[Team]:
        """Give a team another name."""
        return self._read("PATCH", Team, "teams", team, body={"name": name})

    def members(self, team: str, limit: int = DEFAULT_LIMIT, after: str | None = None) -> ApiAnswer[Page[Member]]:
        """List a team's members."""
        return self._read("GET", Page[Member], "teams", team, "members", query=_page(limit, after))

    def every_member(self, team: str) -> Iterator[Member]:
        """Go through all members of a team."""
        return _every(lambda after: self.members(team, LARGEST_LIMIT, after))

    def set_role(self, team: str, member_id: str, role: str) -> ApiAnswer[Member]:
        """Give a member another role."""
        return self._read("PATCH", Member, "teams", team, "members", member_id, body={"role": role})

    def remove_member(self, team: str, member_id: str) -> None:
        """Remove a member, or leave."""
        self._done("DELETE", "teams", team, "members", member_id)

    def invite(self, team: str, email: str, role: str) -> ApiAnswer[Invitation]:
        """Invite somebody."""
        return self._create(Invitation, {"email": email, "role": role}, "teams", team, "invitations")

    def invitations(
        self, team: str, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> ApiAnswer[Page[Invitation]]:
        """List a team's open invitations."""
        return self._read("GET", Page[Invitation], "teams", team, "invitations", query=_page(limit, after))

    def revoke_invitation(self, team: str, invitation_id: str) -> None:
        """Take an invitation back."""
        self._done("DELETE", "teams", team, "invitations", invitation_id)

    # ---- tokens

    def tokens(self, team: str, limit: int = DEFAULT_LIMIT, after: str | None = None) -> ApiAnswer[Page[Token]]:
        """List a team's API tokens."""
        return self._read("GET", Page[Token], "teams", team, "tokens", query=_page(limit, after))

    def create_token(self, team: str, body: Mapping[str, Any]) -> ApiAnswer[Token]:
        """Make an API token."""
        return self._create(Token, body, "teams", team, "tokens")

    def token(self, team: str, token_id: str) -> ApiAnswer[Token]:
        """Give an API token."""
        return self._read("GET", Token, "teams", team, "tokens", token_id)

    def update_token(self, team: str, token_id: str, body: Mapping[str, Any]) -> ApiAnswer[Token]:
        """Change settings of an API token."""
        return self._read("PATCH", Token, "teams", team, "tokens", token_id, body=body)

    def delete_token(self, team: str, token_id: str) -> None:
        """Delete an API token."""
        self._done("DELETE", "teams", team, "tokens", token_id)

    def rotate_token(self, team: str, token_id: str, overlap_seconds: int) -> ApiAnswer[Token]:
        """Make a successor of an API token."""
        body = {"overlap_seconds": overlap_seconds}
        return self._create(Token, body, "teams", team, "tokens", token_id, "rotate")

    # ---- domains

    def domains(self, team: str, limit: int = DEFAULT_LIMIT, after: str | None = None) -> ApiAnswer[Page[Domain]]:
        """List a team's whitelisted domains."""
        return self._read("GET", Page[Domain], "teams", team, "domains", query=_page(limit, after))

    def add_domain(self, team: str, body: Mapping[str, Any]) -> ApiAnswer[Domain]:
        """Whitelist a domain."""
        return self._create(Domain, body, "teams", team, "domains")

    def domain(self, team: str, domain_id: str) -> ApiAnswer[Domain]:
        """Give a whitelist entry."""
        return self._read("GET", Domain, "teams", team, "domains", domain_id)

    def update_domain(self, team: str, domain_id: str, body: Mapping[str, Any]) -> ApiAnswer[Domain]:
        """Change a whitelist entry."""
        return self._read("PATCH", Domain, "teams", team, "domains", domain_id, body=body)

    def remove_domain(self, team: str, domain_id: str) -> None:
        """Remove a whitelist entry."""
        self._done("DELETE", "teams", team, "domains", domain_id)

    def verify_domain(self, team: str, domain_id: str) -> ApiAnswer[Domain]:
        """Look for the proof that a domain is the team's."""
        return self._read("POST", Domain, "teams", team, "domains", domain_id, "verify", body={})

    def check_origin(self, team: str, origin: str) -> ApiAnswer[Check]:
        """Ask whether an origin would pass."""
        return self._read("GET", Check, "teams", team, "domains", "check", query={"origin": origin})

    # ---- logs

    def logs(
        self,
        team: str,
        filters: Mapping[str, str],
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
        newer: str | None = None,
    ) -> ApiAnswer[LogPage]:
        """List a team's calls, newest first; with `newer` those that came since, oldest first."""
        query = {**_page(limit, after), **({} if newer is None else {"newer": newer}), **filters}
        return self._read("GET", LogPage, "teams", team, "logs", query=query)

    # ---- money

    def usage(self, team: str, month: str | None, by: str) -> ApiAnswer[Usage]:
        """Give what a team used in a month, the current one unless told otherwise."""
        query = {"by": by} if month is None else {"month": month, "by": by}
        return self._read("GET", Usage, "teams", team, "usage", query=query)

    def billing(self, team: str) -> ApiAnswer[Billing]:
        """Give a team's spending cap and alerts."""
        return self._read("GET", Billing, "teams", team, "billing")

    def update_billing(self, team: str, body: Mapping[str, Any]) -> ApiAnswer[Billing]:
        """Set a team's spending cap and alerts."""
        return self._read("PATCH", Billing, "teams", team, "billing", body=body)

    def invoices(
        self, team: str, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> ApiAnswer[Page[Invoice]]:
        """List a team's invoices, newest first."""
        return self._read("GET", Page[Invoice], "teams", team, "invoices", query=_page(limit, after))

    def invoice(self, team: str, month: str) -> ApiAnswer[Invoice]:
        """Give the invoice of a month."""
        return self._read("GET", Invoice, "teams", team, "invoices", month)

    def invoice_csv(self, team: str, month: str) -> str:
        """Give the invoice of a month as a table for spreadsheets."""
        reply = self._ask("GET", ("teams", team, "invoices", month), {"format": "csv"}, None)
        return answers.text(reply, "text/csv", self._transport.url)

    # ---- audit

    def audit(
        self, team: str, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> ApiAnswer[Page[AuditEntry]]:
        """List what was changed in a team, newest first."""
        return self._read("GET", Page[AuditEntry], "teams", team, "audit", query=_page(limit, after))

    # ---- how it is done

    def _read(
        self,
        method: str,
        shape: type[T],
        *path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> ApiAnswer[T]:
        return answers.read(self._ask(method, path, query, body), shape, self._transport.url)

    def _done(self, method: str, *path: str, body: Mapping[str, Any] | None = None) -> None:
        answers.expect_done(self._ask(method, path, None, body), self._transport.url)

    def _create(self, shape: type[T], body: Mapping[str, Any], *path: str) -> ApiAnswer[T]:
        """Create a thing once, even if the connection breaks and the request is sent again."""
        key = str(uuid.uuid4())
        try:
            reply = self._ask("POST", path, None, body, key)
        except Lost as lost:
            try:
                reply = self._ask("POST", path, None, body, key)
            except NoServer:
                raise lost from None  # the first attempt did reach somebody
        return answers.read(reply, shape, self._transport.url)

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        key: str | None = None,
    ) -> HttpReply:
        target = BASE + "".join(f"/{_segment(part)}" for part in path)
        if query:
            target += "?" + urlencode(query)
        content = None if body is None else msgspec.json.encode(body)

        def send(secret: str) -> HttpReply:
            headers = {"Authorization": f"Bearer {secret}"}
            if content is not None:
                headers["Content-Type"] = "application/json"
            if key is not None:
                headers["Idempotency-Key"] = key
            return self._transport.send(method, target, headers=headers, body=content)

        secret = self._login.secret()
        reply = send(secret)
        if _login_refused(reply) and (fresh := self._login.renewed(secret)) is not None:
            reply = send(fresh)
        if _login_refused(reply):
            raise self._login.refusal()
        return reply


def _every(ask: Callable[[str | None], ApiAnswer[Page[T]]]) -> Iterator[T]:
    """Go through a list page by page."""
    after = None
    for _ in range(_MAX_PAGES):
        page = ask(after).value
        yield from page.items
        if (after := page.next) is None:
            return


def _login_refused(reply: HttpReply) -> bool:
    if reply.status != 401:
        return False
    problem = answers.problem_of(reply)
    return problem is not None and problem.reason in _LOGIN_REFUSALS


def _page(limit: int, after: str | None) -> dict[str, str]:
    return {"limit": str(limit)} if after is None else {"limit": str(limit), "after": after}


def _segment(part: str) -> str:
    """Write a name or id as one part of a path, whatever stands in it."""
    if not part:
        raise WrongUsage("An empty name or id names nothing.")
    # Dots alone would be taken for a way up the path.
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")
