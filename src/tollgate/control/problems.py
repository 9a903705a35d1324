"""What the control plane refuses, as RFC 9457 problem details: one tree, each with status and reason.

    Problem
    ├── InvalidInput  RootDomainNeeded
    ├── NotLoggedIn  LoginExpired  WrongPassword
    ├── NoSuchTeam  RoleNeeded  PersonalTokenRefused  LogInAgain  SignUpClosed  AddressUnproved
    │   InvitationForOther
    ├── NotFound
    ├── NameTaken  DomainTaken  DomainVerified  NotProven  LastOwner  AlreadyMember  LimitReached  RequestRunning
    ├── ChangedMeanwhile  KeyReused
    ├── TooManyAttempts  TooManyRequests
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
    """A request that is refused. `detail` is what happened and what to do next.

    The docstring of each kind is its description in the API's documentation.
    """

    status: ClassVar[int] = 400
    reason: ClassVar[str] = "invalid_request"
    when: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.when = cls.__doc__ or ""

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
        return HTTPStatus(self.status).phrase


class InvalidInput(Problem):
    """The body, the query or a cursor is wrong; `errors` lists what, and `field` is the first of them."""

    def __init__(self, detail: str, *, field: str | None = None, errors: Sequence[FieldError] = ()) -> None:
        self._errors = errors
        super().__init__(detail, field=field)

    @property
    def errors(self) -> Sequence[FieldError]:
        return self._errors or super().errors


class RootDomainNeeded(Problem):
    """The name is not a root domain; `suggestion` is the root to use."""

    status, reason = 422, "not_a_root_domain"


class NotLoggedIn(Problem):
    """No credential, or one that is not known."""

    status, reason = 401, "not_logged_in"

    def __init__(self, detail: str = "Log in first: send the header Authorization: Bearer <token>.") -> None:
        super().__init__(detail, headers={"WWW-Authenticate": "Bearer"})


class LoginExpired(Problem):
    """The login or personal token has expired or was ended."""

    status, reason = 401, "login_expired"

    def __init__(self, detail: str = "This login has expired or was ended: log in again.") -> None:
        super().__init__(detail, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})


class WrongPassword(Problem):
    """The email or the password is wrong."""

    # The caller must not learn which of the two.
    status, reason = 401, "wrong_password"

    def __init__(self, detail: str = "The email or the password is wrong.") -> None:
        super().__init__(detail, headers={"WWW-Authenticate": "Bearer"})


class NoSuchTeam(Problem):
    """The team does not exist, or the caller is not in it; `suggestion` is the caller's most similar team."""

    status, reason = 403, "no_such_team"

    def __init__(self, team: str, suggestion: str | None = None) -> None:
        hint = f' Did you mean "{suggestion}"?' if suggestion else " List yours with: tollgate teams list"
        super().__init__(f'There is no team "{team}" that you belong to.{hint}', team=team, suggestion=suggestion)


class RoleNeeded(Problem):
    """The caller's role in the team does not allow it; `roles` do."""

    status, reason = 403, "role_needed"

    def __init__(self, action: str, role: str, roles: Sequence[str]) -> None:
        names = " or ".join([", ".join(roles[:-1]), roles[-1]] if len(roles) > 1 else roles)
        super().__init__(f"To {action} you must be {names}; you are {role}.", role=role, roles=list(roles))


class PersonalTokenRefused(Problem):
    """A personal access token may not do this, or this one is read-only or for one team: log in."""

    status, reason = 403, "personal_token_refused"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"A personal access token may not {what}: log in with `tollgate auth login` or the console."
        )


class LogInAgain(Problem):
    """The last sign-in with a password, a passkey or a provider was more than 15 minutes ago: sign in again."""

    status, reason = 403, "log_in_again"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"To {what}, sign in to the console again first (then run `tollgate auth login` again for the tool): "
            "you last signed in more than 15 minutes ago."
        )


class SignUpClosed(Problem):
    """The setting `accounts.sign_up` does not allow this account to be created."""

    status, reason = 403, "sign_up_closed"


class AddressUnproved(Problem):
    """The account's email address is not verified yet: request a link by mail."""

    status, reason = 403, "address_unproved"


class InvitationForOther(Problem):
    """The invitation is for another email than the caller's."""

    status, reason = 403, "invitation_for_other"


class NotFound(Problem):
    """It does not exist in this team or account, or the path does not exist."""

    status, reason = 404, "not_found"


class NameTaken(Problem):
    """The name, email or domain is taken; `field` names which."""

    status, reason = 409, "name_taken"

    def __init__(self, detail: str, field: str) -> None:
        super().__init__(detail, field=field)


class DomainTaken(Problem):
    """Another team has whitelisted the domain; the answer describes how to prove that it is yours."""

    status, reason = 409, "domain_taken"


class DomainVerified(Problem):
    """A take-over is refused: the other team's own proof is still published."""

    status, reason = 409, "domain_verified"


class NotProven(Problem):
    """No proof of ownership was found; `problems` lists where it was looked for."""

    status, reason = 409, "not_proven"


class LastOwner(Problem):
    """The team would be left without an owner."""

    status, reason = 409, "last_owner"

    def __init__(self, detail: str = "A team needs an owner: make another member owner first.") -> None:
        super().__init__(detail)


class AlreadyMember(Problem):
    """The person belongs to the team already."""

    status, reason = 409, "already_member"


class LimitReached(Problem):
    """A limit of the settings is reached, such as `accounts.tokens_per_team`."""

    status, reason = 409, "limit_reached"


class RequestRunning(Problem):
    """A request with the same `Idempotency-Key` is still running."""

    status, reason = 409, "request_running"


class ChangedMeanwhile(Problem):
    """`If-Match` does not match: it was changed in the meantime."""

    status, reason = 412, "changed_meanwhile"

    def __init__(self) -> None:
        super().__init__("It was changed in the meantime: read it again, then change it.")


class KeyReused(Problem):
    """The `Idempotency-Key` was used with another body."""

    status, reason = 422, "key_reused"


class TooManyAttempts(Problem):
    """Too many failed logins, wrong codes, waiting logins or raises of a cap; with `Retry-After`."""

    status, reason = 429, "too_many_attempts"

    def __init__(self, detail: str, seconds: float) -> None:
        wait = max(1, int(seconds + 0.999))
        super().__init__(detail, headers={"Retry-After": str(wait)}, retry_after=wait)


class TooManyRequests(Problem):
    """Too many requests of one credential or client address; `limit` names it. With `Retry-After`."""

    status, reason = 429, "rate_limited"

    def __init__(self, detail: str, seconds: float, limit: str) -> None:
        wait = max(1, int(seconds + 0.999))
        super().__init__(detail, headers={"Retry-After": str(wait)}, retry_after=wait, limit=limit)


class StoreAway(Problem):
    """The database cannot be reached; with `Retry-After`."""

    status, reason = 503, "store_unavailable"

    def __init__(self) -> None:
        super().__init__("The service cannot reach its database now: try again.", headers={"Retry-After": "2"})


class Busy(Problem):
    """Too many passwords are being checked, or live views open, at once; with `Retry-After`."""

    status, reason = 503, "busy"

    def __init__(self, detail: str = "Too many sign-ins at once: try again.") -> None:
        super().__init__(detail, headers={"Retry-After": "2"})


ALL_PROBLEMS = tuple(Problem.__subclasses__())
