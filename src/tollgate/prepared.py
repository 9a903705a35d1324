"""What the parent has made before it forks: the data folder, the store brought up to date, the pepper."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from sqlalchemy.engine import URL

from tollgate import log
from tollgate.config import Settings
from tollgate.errors import StartError
from tollgate.store import pepper, sqlite
from tollgate.store.upgrade import upgrade

_log = log.get("server")


class Prepared(Struct, frozen=True):
    """What the parent has made before it forks."""

    settings: Settings
    data_dir: Path
    store_url: URL
    pepper: bytes

    def __repr__(self) -> str:
        return f"Prepared({self.data_dir})"


def prepare(settings: Settings) -> Prepared:
    """Make the data folder, bring the store up to date, load the pepper."""
    data_dir = Path(settings.data_dir)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"data_dir: {data_dir} cannot be made: {error.strerror}.") from error
    url = sqlite.store_url(settings.store.url, data_dir)
    for step in upgrade(url):
        _log.info("database migrated", step=step)
    return Prepared(settings, data_dir, url, pepper.load(settings.secrets.pepper, data_dir, url))
