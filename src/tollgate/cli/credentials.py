"""Where the tool stores logins and defaults, in `$XDG_CONFIG_HOME/tollgate`.

    config.json        the server last logged in to, and the team to act for there
    credentials.json   mode 0600: a login for each server, or a note that it is in the system keyring
    lock               held while credentials change

Files are replaced, never written in place. Messages and reprs contain no secret. `session.py` decides which
environment variables take precedence.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from tollgate.cli.failures import Failure
from tollgate.cli.show import note
from tollgate.file_lock import lock_within, open_lock_file
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import keyring as keyring_library
else:
    keyring_library = LazyModule("keyring")  # takes 100 ms, and most commands do not need it

T = TypeVar("T")

# The service name of our logins in the system keyring.
SERVICE = "tollgate"
# The holder may wait for the server: its connect and read deadlines together, and a margin.
LOCK_SECONDS = 55.0


class Credential(Struct, frozen=True, omit_defaults=True):
    """A login at one server."""

    kind: Literal["tool", "personal"]
    access: str
    refresh: str | None = None
    expires_at: float | None = None
    """When the access token expires, in seconds since 1970."""

    def __repr__(self) -> str:
        return f"Credential({self.kind!r}, …)"


class Choices(Struct, frozen=True, omit_defaults=True):
    """What the last login chose. The team belongs to the server beside it."""

    url: str | None = None
    team: str | None = None


class _StoredLogin(Struct, frozen=True, omit_defaults=True):
    """The login, or None if the keyring has it."""

    credential: Credential | None = None


class KeyringError(Exception):
    """The keyring exists but failed: locked, denied or gone."""


class Keyring(Protocol):
    """Stores one text per server."""

    def get(self, url: str) -> str | None: ...

    def put(self, url: str, text: str) -> None: ...

    def delete(self, url: str) -> None: ...


class SystemKeyring:
    """The backend that the keyring library has chosen."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def get(self, url: str) -> str | None:
        with _as_keyring_error():
            text: str | None = self._backend.get_password(SERVICE, url)
            return text

    def put(self, url: str, text: str) -> None:
        with _as_keyring_error():
            self._backend.set_password(SERVICE, url, text)

    def delete(self, url: str) -> None:
        with _as_keyring_error():
            self._backend.delete_password(SERVICE, url)


def system_keyring() -> Keyring | None:
    try:
        backend = keyring_library.get_keyring()
        # The libraries' own "fail" and "null" backends have no positive priority.
        return SystemKeyring(backend) if float(backend.priority) > 0 else None
    except Exception:  # noqa: BLE001 - backends raise any error of their platform
        return None


@contextmanager
def _as_keyring_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        # Only its class: a backend's message may contain the secret.
        raise KeyringError(type(error).__name__) from None


class CredentialStore:
    """The folder, and the keyring if a usable one exists."""

    def __init__(
        self,
        folder: Path,
        *,
        keyring: Callable[[], Keyring | None] = system_keyring,
        warn: Callable[[str], None] = note,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        self.folder = folder
        self.credentials_file = folder / "credentials.json"
        self._config_file = folder / "config.json"
        self._keyring = keyring
        self._warn = warn
        self._lock_seconds = lock_seconds
        self._locked = False

    @classmethod
    def at_home(cls, environ: Mapping[str, str]) -> CredentialStore:
        """Find the folder that the environment names."""
        base = environ.get("XDG_CONFIG_HOME", "")
        # The XDG specification: relative paths are ignored.
        root = Path(base) if base.startswith("/") else Path("~/.config").expanduser()
        return cls(root / "tollgate")

    # ---- choices

    def choices(self) -> Choices:
        return self._read(self._config_file, Choices) or Choices()

    def choose(self, url: str, team: str | None) -> None:
        """Make this server and team the defaults of later commands."""
        self._write(self._config_file, msgspec.json.encode(Choices(url, team)))

    def team_at(self, url: str) -> str | None:
        choices = self.choices()
        return choices.team if choices.url == url else None

    # ---- credentials

    def credential(self, url: str) -> Credential | None:
        entry = self._entries().get(url)
        if entry is None or entry.credential is not None:
            return entry.credential if entry else None
        keyring = self._keyring()
        if keyring is None:
            raise Failure(
                f"The login for {url} is in the system keyring, which is not available here. "
                "Run: tollgate auth login (or set TOLLGATE_TOKEN)"
            )
        try:
            text = keyring.get(url)
            return None if text is None else msgspec.json.decode(text, type=Credential)
        except (KeyringError, msgspec.DecodeError, msgspec.ValidationError) as error:
            reason = str(error) if isinstance(error, KeyringError) else "its entry is not a login"
            raise Failure(
                f"The login for {url} cannot be read from the system keyring ({reason}). "
                "Run: tollgate auth login (or set TOLLGATE_TOKEN)"
            ) from None

    def put(self, url: str, credential: Credential) -> None:
        """Store a login: in the keyring, or in the file if there is none or it fails."""
        with self.locked():
            entry = _StoredLogin() if self._put_in_keyring(url, credential) else _StoredLogin(credential)
            self._write_entries({**self._entries(), url: entry})

    def renew(self, url: str, credential: Credential) -> None:
        """Store a renewed login where the old one was."""
        with self.locked():
            entries = self._entries()
            before = entries.get(url)
            if before is None or before.credential is None:
                self.put(url, credential)
            else:
                self._write_entries({**entries, url: _StoredLogin(credential)})

    def forget(self, url: str) -> None:
        with self.locked():
            entries = self._entries()
            if (gone := entries.pop(url, None)) is None:
                return
            self._write_entries(entries)
            keyring = self._keyring() if gone.credential is None else None
            if keyring is not None:
                try:
                    keyring.delete(url)
                except KeyringError as error:
                    self._warn(f"The system keyring did not delete the login ({error}).")

    def place(self, url: str) -> str:
        entry = self._entries().get(url)
        return "the system keyring" if entry and entry.credential is None else str(self.credentials_file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the credentials against other processes. Reentrant."""
        if self._locked:
            yield
            return
        self._make_folder()
        with _explained(self.folder / "lock", "written"):
            handle = open_lock_file(self.folder / "lock")
        try:
            if not lock_within(handle, self._lock_seconds):
                raise Failure(
                    f"Another tollgate holds {self.folder / 'lock'}. Try again when that process has ended."
                )
            self._locked = True
            yield
        finally:
            self._locked = False
            os.close(handle)  # which releases the lock

    def _put_in_keyring(self, url: str, credential: Credential) -> bool:
        keyring = self._keyring()
        if keyring is None:
            return False
        try:
            keyring.put(url, msgspec.json.encode(credential).decode())
        except KeyringError as error:
            self._warn(f"The system keyring did not accept the login ({error}): it is stored in a file instead.")
            return False
        return True

    # ---- files

    def _entries(self) -> dict[str, _StoredLogin]:
        self._mend_mode()
        return self._read(self.credentials_file, dict[str, _StoredLogin]) or {}

    def _mend_mode(self) -> None:
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(self.credentials_file.stat().st_mode)
            if mode & 0o077:
                self._warn(
                    f"{self.credentials_file} was readable by others (mode {mode:04o}); its mode is now 0600."
                )
                with _explained(self.credentials_file, "protected"):
                    self.credentials_file.chmod(0o600)

    def _write_entries(self, entries: dict[str, _StoredLogin]) -> None:
        self._write(self.credentials_file, msgspec.json.encode(entries))

    def _read(self, path: Path, shape: type[T]) -> T | None:
        with _explained(path, "read"):
            try:
                return msgspec.json.decode(path.read_bytes(), type=shape)
            except FileNotFoundError:
                return None
            except (msgspec.DecodeError, msgspec.ValidationError):
                raise Failure(
                    f"{path} was not written by this version of tollgate. Remove it, then run: tollgate auth login"
                ) from None

    def _write(self, path: Path, content: bytes) -> None:
        self._make_folder()
        draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        with _explained(path, "written"):
            try:
                handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(path)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise

    def _make_folder(self) -> None:
        with _explained(self.folder, "written"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_IMODE(self.folder.stat().st_mode) & 0o077:
                self.folder.chmod(0o700)


@contextmanager
def _explained(path: Path, done: str) -> Iterator[None]:
    """Turn an OSError into a failure that names the file and an alternative."""
    try:
        yield
    except OSError as error:
        raise Failure(
            f"{path} cannot be {done} ({error.strerror}). "
            "Fix that, choose another folder with XDG_CONFIG_HOME, or use TOLLGATE_TOKEN."
        ) from None
