"""The system keyring as a port of three methods. `keyring` is slow to import, so that is done only in here.

Secrets go through as text; whatever a backend raises becomes a VaultError without the text.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICE = "tollgate"


class KeyringError(Exception):
    """The keyring is there but did not do as asked: locked, denied, gone."""


class Keyring(Protocol):
    """Keeps one text for each server."""

    def get(self, url: str) -> str | None:
        """Give the text kept for a server."""

    def put(self, url: str, text: str) -> None:
        """Keep a text for a server."""

    def delete(self, url: str) -> None:
        """Forget the text of a server."""


class SystemKeyring:
    """The backend that the keyring library has chosen."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def get(self, url: str) -> str | None:
        """Give the text kept for a server."""
        with _as_vault_error():
            text: str | None = self._backend.get_password(SERVICE, url)
            return text

    def put(self, url: str, text: str) -> None:
        """Keep a text for a server."""
        with _as_vault_error():
            self._backend.set_password(SERVICE, url, text)

    def delete(self, url: str) -> None:
        """Forget the text of a server."""
        with _as_vault_error():
            self._backend.delete_password(SERVICE, url)


def system_keyring() -> Keyring | None:
    """Give the system keyring, if one can be used."""
    try:
        import keyring  # noqa: PLC0415 - a tenth of a second that most commands need not spend

        backend = keyring.get_keyring()
        # The libraries' own "fail" and "null" backends have no positive priority.
        return SystemKeyring(backend) if float(backend.priority) > 0 else None
    except Exception:  # noqa: BLE001 - backends raise whatever their platform gives them
        return None


@contextmanager
def _as_vault_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        # Its class alone: no backend promises to keep what it was given out of its messages.
        raise KeyringError(type(error).__name__) from None
