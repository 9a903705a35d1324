"""What the parent makes before it forks: the data folder, the migrated databases, the pepper.

The pepper is the key under which tokens are hashed. A store remembers a fingerprint of the pepper its digests
were made with: started with another one, every token would be refused one by one, so the service refuses to
start instead. So it is with the key of second factors, where one is set.

The audit log has a key of its own, which no replaced pepper changes: it is made once, and stored sealed.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from sqlalchemy.engine import URL

from tollgate import log
from tollgate.core.sealed import BrokenSeal, Cipher
from tollgate.core.secrets import derive
from tollgate.errors import StartError
from tollgate.processes.run_in_child import run_in_child
from tollgate.settings.file import Origin
from tollgate.settings.model import Settings
from tollgate.store import engines
from tollgate.store.upgrade import CONTROL, LEDGER, migrate

_log = log.get("server")

PEPPER = "pepper"
"""The name of its file in the data folder, and of its fingerprint in the store."""
PREVIOUS_PEPPER = "pepper.previous"
FACTOR_KEY, AUDIT_KEY = "factor_key", "audit key"
"""Names of facts: the fingerprint of one, and the other, sealed."""
PEPPER_REPLACED_AT = "pepper_replaced_at"
"""The name of the fact with the time of the change: what was made before is hashed under the previous one."""


class Bootstrap(Struct, frozen=True):
    """What the parent has made before it forks."""

    settings: Settings
    data_dir: Path
    store_url: URL
    ledger_url: URL
    pepper: bytes
    origin: Origin | None = None
    """Where the settings came from; None: from nowhere that could be read again."""
    previous_pepper: bytes | None = None
    """The one that `pepper` replaces: hashes made with it stay valid."""
    factor_key: bytes | None = None
    """Of second factors; None: the pepper."""
    audit_key: bytes = b""

    @property
    def spool_dir(self) -> Path:
        """Where workers leave their records for the collector."""
        return self.data_dir / "spool"

    def __repr__(self) -> str:
        return f"Bootstrap({self.data_dir})"


def prepare(settings: Settings, origin: Origin | None = None) -> Bootstrap:
    """Make the data folder, bring the store up to date, load the pepper."""
    data_dir = make_data_dir(settings)
    url = engines.store_url(settings.store.url, data_dir)
    ledger_url = engines.ledger_url(url, data_dir)
    for each, scripts in ((url, CONTROL), (ledger_url, LEDGER)):
        for step in migrate_in_child(each, scripts):
            _log.info("database migrated", step=step, database=each.database)
    pepper, previous = load_peppers(settings, data_dir, url)
    factor_key = load_factor_key(settings, url)
    # In a child, so that the parent never loads the ciphers.
    opened = run_in_child(lambda: _audit_key(url, pepper, previous).hex(), str, "Opening the audit log's key")
    audit_key = bytes.fromhex(opened)
    return Bootstrap(settings, data_dir, url, ledger_url, pepper, origin, previous, factor_key, audit_key)


def make_data_dir(settings: Settings) -> Path:
    """Make the data folder, which only its owner can read; so is all that this process writes from now on."""
    os.umask(0o077)
    data_dir = Path(settings.data_dir)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(data_dir)
        (data_dir / "spool").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StartError(f"data_dir: {data_dir} cannot be made: {error.strerror}.") from error
    return data_dir


def check_private(data_dir: Path) -> None:
    """Refuse a data folder that others can read: it holds digests of tokens and addresses of callers."""
    if stat.S_IMODE(data_dir.stat().st_mode) & 0o077:
        raise StartError(f"data_dir: {data_dir} can be read by others: run `chmod 700 {data_dir}`.")


def migrate_in_child(url: URL, scripts: str) -> list[str]:
    """Migrate a database in a child process, so that the parent never loads Alembic; return the steps taken."""
    return run_in_child(lambda: migrate(url, scripts), list[str], f"Migrating the database {url.database}")


def load_peppers(settings: Settings, data_dir: Path, url: URL) -> tuple[bytes, bytes | None]:
    """Return the pepper of this installation, made on the first start, and the one that it replaces, if any."""
    configured = settings.secrets.pepper
    pepper = configured.encode() if configured else _pepper_of(data_dir / PEPPER)
    previous = _previous_pepper(settings, data_dir)
    stored = engines.insert_if_absent(url, PEPPER, fingerprint(pepper))
    if stored == fingerprint(pepper):
        return pepper, previous
    if previous is None or stored != fingerprint(previous):
        raise _another_pepper(settings, data_dir)
    engines.replace_facts(url, {PEPPER: fingerprint(pepper), PEPPER_REPLACED_AT: str(time.time())})
    _log.warning("the pepper was replaced: what was hashed under the one before works until that is taken away")
    return pepper, previous


def check_peppers(settings: Settings, data_dir: Path, url: URL) -> None:
    """Refuse a pepper as `load_peppers` would, and change nothing."""
    stored = engines.fact(url, PEPPER)
    if stored is None:
        return
    path, configured = data_dir / PEPPER, settings.secrets.pepper
    if not configured and not path.exists():
        raise StartError(
            f"{path} is missing, and the tokens of this store were hashed with it: put it back from a backup, or "
            "set `secrets.pepper`."
        )
    pepper = configured.encode() if configured else read_pepper(path)
    known = {fingerprint(each) for each in (pepper, _previous_pepper(settings, data_dir)) if each is not None}
    if stored not in known:
        raise _another_pepper(settings, data_dir)


def load_factor_key(settings: Settings, url: URL) -> bytes | None:
    """The key of second factors, if one is set; refuse another one than before."""
    key = _factor_key(settings)
    if key is None:
        stored = engines.fact(url, FACTOR_KEY)
    else:
        stored = engines.insert_if_absent(url, FACTOR_KEY, fingerprint(key))
    if stored is not None and (key is None or stored != fingerprint(key)):
        what = "is not set" if key is None else "is another one"
        raise StartError(
            f"Second factors of this store are sealed under a key, and `secrets.factor_key` {what}: set that key, "
            "or `secrets.factor_key_file`. Without it no code of an app would be accepted."
        )
    return key


def _factor_key(settings: Settings) -> bytes | None:
    if settings.secrets.factor_key:
        return settings.secrets.factor_key.encode()
    if not settings.secrets.factor_key_file:
        return None
    path = Path(settings.secrets.factor_key_file)
    try:
        return read_pepper(path)
    except OSError as error:
        raise StartError(f"secrets.factor_key_file: {path} cannot be read: {error.strerror}.") from error


def _audit_key(url: URL, pepper: bytes, previous: bytes | None) -> bytes:
    """The key of the audit log, made on the first start; sealed again where the pepper was replaced."""
    made = Cipher(pepper, AUDIT_KEY).close("", secrets.token_bytes(32)).hex()
    stored = bytes.fromhex(engines.insert_if_absent(url, AUDIT_KEY, made))
    for each in (pepper, previous):
        if each is not None:
            with suppress(BrokenSeal):
                key = Cipher(each, AUDIT_KEY).open("", stored)
                if each is previous:
                    engines.replace_facts(url, {AUDIT_KEY: Cipher(pepper, AUDIT_KEY).close("", key).hex()})
                return key
    raise StartError("The key of the audit log cannot be opened with this pepper: put the pepper back.")


def known_audit_key(settings: Settings, data_dir: Path, url: URL) -> bytes | None:
    """The key of the audit log, to check it; empty if there is none, None if the pepper is not at hand."""
    stored, path = engines.fact(url, AUDIT_KEY), data_dir / PEPPER
    if not (settings.secrets.pepper or path.exists()):
        return None
    if stored is None:
        return b""
    pepper = settings.secrets.pepper.encode() or read_pepper(path)
    for each in (pepper, _previous_pepper(settings, data_dir)):
        if each is not None:
            with suppress(BrokenSeal):
                return Cipher(each, AUDIT_KEY).open("", bytes.fromhex(stored))
    return b""


def _previous_pepper(settings: Settings, data_dir: Path) -> bytes | None:
    if settings.secrets.previous_pepper:
        return settings.secrets.previous_pepper.encode()
    path = data_dir / PREVIOUS_PEPPER
    return read_pepper(path) if path.exists() and not settings.secrets.pepper else None


def _another_pepper(settings: Settings, data_dir: Path) -> StartError:
    where = "secrets.pepper" if settings.secrets.pepper else str(data_dir / PEPPER)
    return StartError(
        f"The pepper in {where} is not the one that this store's tokens were hashed with, so no token would "
        "work. Put the old pepper back, or start with a new store. To replace it, see docs/upgrade.md. "
        "Nodes that share a database share one pepper: set `secrets.pepper` on each."
    )


def fingerprint(pepper: bytes) -> str:
    """What a store remembers of its pepper."""
    return derive(pepper, "fingerprint").hex()[:32]


def write_pepper(path: Path, pepper: bytes) -> None:
    """Write a pepper for its owner alone; the file is there whole or not at all."""
    fresh = path.with_suffix(".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(pepper)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _pepper_of(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_pepper(path)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
    return read_pepper(path)


def read_pepper(path: Path) -> bytes:
    """Return the pepper of a file that only its owner can read."""
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise StartError(f"{path} can be read by others: run `chmod 600 {path}`.")
    pepper = path.read_bytes().strip()
    if len(pepper) < 32:
        raise StartError(f"{path} is damaged (shorter than 32 characters): restore it from a backup.")
    return pepper
