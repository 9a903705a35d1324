"""What the parent makes before it forks: the data folder, the migrated databases, the pepper."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from sqlalchemy.engine import URL

from tollgate import log
from tollgate.errors import StartError
from tollgate.processes.run_in_child import run_in_child
from tollgate.settings.file import Origin
from tollgate.settings.model import Settings
from tollgate.store import pepper, sqlite
from tollgate.store.upgrade import CONTROL, LEDGER, migrate

_log = log.get("server")


class Bootstrap(Struct, frozen=True):
    """What the parent has made before it forks."""

    settings: Settings
    data_dir: Path
    store_url: URL
    ledger_url: URL
    pepper: bytes
    origin: Origin | None = None
    """Where the settings came from; None: from nowhere that could be read again."""

    @property
    def spool_dir(self) -> Path:
        """Where workers leave their records for the collector."""
        return self.data_dir / "spool"

    def __repr__(self) -> str:
        return f"Bootstrap({self.data_dir})"


def prepare(settings: Settings, origin: Origin | None = None) -> Bootstrap:
    """Make the data folder, bring the store up to date, load the pepper."""
    data_dir = Path(settings.data_dir)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data_dir / "spool").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StartError(f"data_dir: {data_dir} cannot be made: {error.strerror}.") from error
    url = sqlite.store_url(settings.store.url, data_dir)
    ledger_url = sqlite.ledger_url(data_dir)
    for each, scripts in ((url, CONTROL), (ledger_url, LEDGER)):
        for step in migrate_in_child(each, scripts):
            _log.info("database migrated", step=step, database=each.database)
    secret = pepper.load(settings.secrets.pepper, data_dir, url)
    return Bootstrap(settings, data_dir, url, ledger_url, secret, origin)


def migrate_in_child(url: URL, scripts: str) -> list[str]:
    """Migrate a database in a child process, so that the parent never loads Alembic; return the steps taken."""
    return run_in_child(lambda: migrate(url, scripts), list[str], f"Migrating the database {url.database}")
