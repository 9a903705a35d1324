"""What a command of the tool can end with, and the exit code of each.

    TollgateError
    └── Failure              1   expected; the message includes what to do next
        ├── WrongUsage       2   beside Click's own
        ├── NotFoundFailure  3   the server answered 404
        ├── LoginNeeded      4   no credential, or one that the server refuses
        ├── NotAllowed       5   the server answered 403
        ├── NoServer         1   nothing listens there; nothing has been sent
        ├── Lost             1   the connection broke after the request had been sent
        ├── TooSlow          1   no answer in time
        ├── NotTollgate      1   another service answers
        └── OAuthRefusal     1   the token endpoint refused; `reason` is its error code

Owns the exit codes. Nothing heavy may be imported here: every command loads it before its help is shown.
"""

from __future__ import annotations

from typing import ClassVar

from tollgate.errors import TollgateError

INTERRUPTED = 130


class Failure(TollgateError):
    """A command failed. `reason` is the server's slug, if the server refused."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, reason: str = "") -> None:
        self.reason = reason
        super().__init__(message)


class WrongUsage(Failure):
    """The command cannot be carried out as it was written."""

    exit_code = 2


class NotFoundFailure(Failure):
    """The resource does not exist."""

    exit_code = 3


class LoginNeeded(Failure):
    """There is no login, or it is no longer valid."""

    exit_code = 4


class NotAllowed(Failure):
    """The login is valid, but does not allow this."""

    exit_code = 5


class NoServer(Failure):
    """No connection could be made."""


class Lost(Failure):
    """The request was sent and the connection broke: it is unknown whether it was carried out."""


class TooSlow(Failure):
    """The server took longer than the deadline."""


class NotTollgate(Failure):
    """The server is not a Tollgate."""


class OAuthRefusal(Failure):
    """An error of the token endpoint, as RFC 6749 and RFC 8628 name them."""


def not_logged_in(url: str) -> LoginNeeded:
    return LoginNeeded(f"You are not logged in to {url}. Run: tollgate auth login")


def login_expired() -> LoginNeeded:
    return LoginNeeded("Your login has expired. Run: tollgate auth login", reason="login_expired")
