"""What the control plane refuses, as RFC 9457 problem details: one tree, each with status and reason.

    Problem
    ├── InvalidInput  NotARootDomain
    ├── NotLoggedIn  LoginExpired  WrongPassword
    ├── NoSuchTeam  RoleNeeded  PersonalTokenRefused  LogInAgain  SignUpClosed  InvitationForOther
    ├── NotFound
    ├── NameTaken  DomainTaken  DomainVerified  NotProven  LastOwner  AlreadyMember  LimitReached  RequestRunning
    ├── ChangedMeanwhile  KeyReused
    ├── TooManyAttempts  RateLimited
    └── StoreAway  Busy

A problem's detail includes what to do next. An unknown team and another's team give the same problem with the same
text. `docs/reference/problems.md` is generated from these classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import ClassVar

from msgspec import Struct

from tollgate.errors import TollgateError


class FieldError(Struct, frozen=True):
    """One wrong member, parameter or header of a request."""

    field: str
    detail: str


class Problem(TollgateError):
    """A request that is refused. `detail` is what happened and what to do next."""

    status: ClassVar[int] = 400
    reason: ClassVar[str] = "invalid_request"
    when: ClassVar[str] = ""

    def __init__(self, detail: str, *, headers: dict[str, str] | None = None, **extras: object) -> None:
        self.detail = detail
        self.headers = headers or {}
        self.extras = {name: value for name, value in extras.items() if value is not None}
        super().__init__(detail)

    @property
    def errors(self) -> Sequence[FieldError]:
        """Every wrong field of the request, if the problem names some."""
        field = self.extras.get("field")
        return [FieldError(str(field), self.detail)] if field else []

    @property
    def title(self) -> str:
        """The status in words."""
        return HTTPStatus(self.status).phrase


class InvalidInput(Problem):
    """Something in the request is wrong."""

    when = "The body, the query or a cursor is wrong; `errors` lists what, and `field` is the first of them."

    def __init__(self, detail: str, *, field: str | None = None, errors: Sequence[FieldError] = ()) -> None:
        self._errors = errors
        super().__init__(detail, field=field)

    @property
    def errors(self) -> Sequence[FieldError]:
        return self._errors or super().errors


class RootDomainNeeded(Problem):
    """A name that cannot be whitelisted."""

    status, reason = 422, "not_a_root_domain"
    when = "The name is not a root domain; `suggestion` is the root to use."


class NotLoggedIn(Problem):
    """No usable credential."""

    status, reason = 401, "not_logged_in"
    when = "No credential, or one that is not known."

    def __init__(self, detail: str = "Log in first: send the header Authorization: Bearer <token>.") -> None:
        super().__init__(detail, headers={"WWW-Authenticate": "Bearer"})


class LoginExpired(Problem):
    """A credential that is no longer valid."""

    status, reason = 401, "login_expired"
    when = "The login or personal token has expired or was ended."

    def __init__(self, detail: str = "This login has expired or was ended: log in again.") -> None:
        super().__init__(detail, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})


class WrongPassword(Problem):
    """Email or password is wrong; the caller must not learn which."""

    status, reason = 401, "wrong_password"
    when = "The email or the password is wrong."

    def __init__(self, detail: str = "The email or the password is wrong.") -> None:
        super().__init__(detail, headers={"WWW-Authenticate": "Bearer"})


class NoSuchTeam(Problem):
    """The caller has no such team; whether another has it is not revealed."""

    status, reason = 403, "no_such_team"
    when = "The team does not exist, or the caller is not in it; `suggestion` is the caller's most similar team."

    def __init__(self, team: str, suggestion: str | None = None) -> None:
        hint = f' Did you mean "{suggestion}"?' if suggestion else " List yours with: tollgate teams list"
        super().__init__(f'There is no team "{team}" that you belong to.{hint}', team=team, suggestion=suggestion)


class RoleNeeded(Problem):
    """A member without the right."""

    status, reason = 403, "role_needed"
    when = "The caller's role in the team does not allow it; `roles` do."

    def __init__(self, action: str, role: str, roles: Sequence[str]) -> None:
        names = " or ".join([", ".join(roles[:-1]), roles[-1]] if len(roles) > 1 else roles)
        super().__init__(f"To {action} you must be {names}; you are {role}.", role=role, roles=list(roles))


class PersonalTokenRefused(Problem):
    """The action requires a person, not a program with a personal token."""

    status, reason = 403, "personal_token_refused"
    when = "A personal access token may not do this, or this one is read-only or for one team: log in."

    def __init__(self, what: str) -> None:
        super().__init__(
            f"A personal access token may not {what}: log in with `tollgate auth login` or the console."
        )


class LogInAgain(Problem):
    """The action requires a recent login."""

    status, reason = 403, "log_in_again"
    when = "A login older than 15 minutes may not do this: log in again."

    def __init__(self, what: str) -> None:
        super().__init__(f"To {what}, log in again first: this login is older than 15 minutes.")


class SignUpClosed(Problem):
    """No account may be created this way."""

    status, reason = 403, "sign_up_closed"
    when = "The setting `accounts.sign_up` does not allow this account to be created."


class AddressUnproved(Problem):
    """The account's address is not verified, so it may be another person's."""

    status, reason = 403, "address_unproved"
    when = "The account's email address is not verified yet: request a link by mail."


class InvitationForOther(Problem):
    """The invitation names another person."""

    status, reason = 403, "invitation_for_other"
    when = "The invitation is for another email than the caller's."


class NotFound(Problem):
    """Not here."""

    status, reason = 404, "not_found"
    when = "It does not exist in this team or account, or the path does not exist."


class NameTaken(Problem):
    """A name that must be unique is not."""

    status, reason = 409, "name_taken"
    when = "The name, email or domain is taken; `field` names which."

    def __init__(self, detail: str, field: str) -> None:
        super().__init__(detail, field=field)


class DomainTaken(Problem):
    """Another team has the domain."""

    status, reason = 409, "domain_taken"
    when = "Another team has whitelisted the domain; the answer describes how to prove that it is yours."


class DomainVerified(Problem):
    """The other team's proof is still published."""

    status, reason = 409, "domain_verified"
    when = "A take-over is refused: the other team's own proof is still published."


class NotProven(Problem):
    """No proof was found."""

    status, reason = 409, "not_proven"
    when = "No proof of ownership was found; `problems` lists where it was looked for."


class LastOwner(Problem):
    """The team would be left without an owner."""

    status, reason = 409, "last_owner"
    when = "The team would be left without an owner."

    def __init__(self, detail: str = "A team needs an owner: make another member owner first.") -> None:
        super().__init__(detail)


class AlreadyMember(Problem):
    """The person is in the team."""

    status, reason = 409, "already_member"
    when = "The person belongs to the team already."


class LimitReached(Problem):
    """A bound of the settings."""

    status, reason = 409, "limit_reached"
    when = "A limit of the settings is reached, such as `accounts.tokens_per_team`."


class RequestRunning(Problem):
    """A request with the same Idempotency-Key is still running."""

    status, reason = 409, "request_running"
    when = "A request with the same `Idempotency-Key` is still running."


class ChangedMeanwhile(Problem):
    """If-Match names another version."""

    status, reason = 412, "changed_meanwhile"
    when = "`If-Match` does not match: it was changed in the meantime."

    def __init__(self) -> None:
        super().__init__("It was changed in the meantime: read it again, then change it.")


class KeyReused(Problem):
    """An Idempotency-Key with another body."""

    status, reason = 422, "key_reused"
    when = "The `Idempotency-Key` was used with another body."


class TooManyAttempts(Problem):
    """Slow down."""

    status, reason = 429, "too_many_attempts"
    when = "Too many failed logins, wrong codes, waiting logins or raises of a cap; with `Retry-After`."

    def __init__(self, detail: str, seconds: float) -> None:
        wait = max(1, int(seconds + 0.999))
        super().__init__(detail, headers={"Retry-After": str(wait)}, retry_after=wait)


class TooManyRequests(Problem):
    """Too many requests."""

    status, reason = 429, "rate_limited"
    when = "Too many requests of one credential or client address; `limit` names it. With `Retry-After`."

    def __init__(self, detail: str, seconds: float, limit: str) -> None:
        wait = max(1, int(seconds + 0.999))
        super().__init__(detail, headers={"Retry-After": str(wait)}, retry_after=wait, limit=limit)


class StoreAway(Problem):
    """The database cannot be reached."""

    status, reason = 503, "store_unavailable"
    when = "The database cannot be reached; with `Retry-After`."

    def __init__(self) -> None:
        super().__init__("The service cannot reach its database now: try again.", headers={"Retry-After": "2"})


class Busy(Problem):
    """Too much at once."""

    status, reason = 503, "busy"
    when = "Too many passwords are being checked, or live views open, at once; with `Retry-After`."

    def __init__(self, detail: str = "Too many sign-ins at once: try again.") -> None:
        super().__init__(detail, headers={"Retry-After": "2"})


ALL_PROBLEMS: tuple[type[Problem], ...] = (
    InvalidInput,
    NotLoggedIn,
    LoginExpired,
    WrongPassword,
    NoSuchTeam,
    RoleNeeded,
    PersonalTokenRefused,
    LogInAgain,
    SignUpClosed,
    InvitationForOther,
    NotFound,
    NameTaken,
    DomainTaken,
    DomainVerified,
    NotProven,
    LastOwner,
    AlreadyMember,
    LimitReached,
    RequestRunning,
    ChangedMeanwhile,
    KeyReused,
    RootDomainNeeded,
    TooManyAttempts,
    TooManyRequests,
    StoreAway,
    Busy,
)
