"""A real `tollgate serve` or `tollgate demo` on free ports, and its books, filled as an operator would.

The one part that knows Tollgate: its settings file, its store and its command line.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tollgate.core import secrets
from tollgate.core.models import Domain, Team, Token
from tollgate.core.people import PERSONAL, Account, Login, Member
from tollgate.processes.bootstrap import prepare
from tollgate.settings.model import SecretSettings, Settings, StoreSettings
from tollgate.store import engines

from .processes import alive, descendants, eventually, running
from .raw_http import JSON, Answer, RawConnection, call
from .upstream import is_scripted

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from tollgate.store.base import Repositories

    from .processes import Program

T = TypeVar("T")

linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="looks into /proc, or calls from a second loopback address"
)
TOLLGATE = str(Path(sys.executable).with_name("tollgate"))


class Books:
    """Teams, tokens and domains of one data folder."""

    def __init__(self, data_dir: Path, store: str = "", pepper: str = "") -> None:
        made = prepare(
            Settings(data_dir=str(data_dir), store=StoreSettings(url=store), secrets=SecretSettings(pepper=pepper))
        )
        self.url = made.store_url
        self._pepper = made.pepper

    def do(self, act: Callable[[Repositories], Awaitable[T]]) -> T:
        """Do something with the records in one transaction, in a loop of its own."""

        async def whole() -> T:
            store = engines.open_store(self.url)
            try:
                async with store.changing() as records:
                    return await act(records)
            finally:
                await store.close()

        return asyncio.run(whole())

    def team(self, name: str = "acme", **fields: Any) -> Team:
        """Make a team."""
        made = Team(secrets.new_id("team"), name, **{"created_at": time.time(), **fields})
        self.do(lambda records: records.teams.add(made))
        return made

    def token(self, team: Team, **fields: Any) -> tuple[str, Token]:
        """Make a token; give its secret and what is kept of it."""
        secret = secrets.new_token()
        token_id = secrets.new_id("tok")
        prefix = secrets.shown_prefix(secret)
        made = Token(token_id, team.id, fields.pop("name", token_id), prefix, time.time(), **fields)
        digest = secrets.digest(secret.encode(), self._pepper)
        self.do(lambda records: records.tokens.add(made, digest=digest))
        return secret, made

    def domain(self, team: Team, domain: str, **fields: Any) -> Domain:
        """Whitelist a domain."""
        made = Domain(secrets.new_id("dom"), team.id, domain, time.time(), **fields)
        self.do(lambda records: records.domains.add(made))
        return made

    def account(self, email: str, **roles: str) -> Account:
        """Create an account without a password, with a role in each team that is named."""
        made = Account(secrets.new_id("acc"), email, time.time(), verified_at=time.time())

        async def add(records: Repositories) -> None:
            await records.accounts.add(made)
            for name, role in roles.items():
                team = await records.teams.find(name=name)
                assert team is not None, name
                await records.members.add(Member(secrets.new_id("mem"), team.id, made.id, role, time.time()))

        self.do(add)
        return made

    def personal_token(self, email: str) -> str:
        """Make a personal access token for an account, as only its owner could."""
        secret = secrets.new_token(secrets.PERSONAL)
        digest = secrets.digest(secret.encode(), self._pepper)

        async def add(records: Repositories) -> None:
            account = await records.accounts.find(email=email)
            assert account is not None, email
            await records.logins.add(
                Login(secrets.new_id("log"), account.id, PERSONAL, "test", time.time(), digest)
            )

        self.do(add)
        return secret


@dataclass(frozen=True)
class Gateway:
    """A running service."""

    program: Program
    base_url: str
    metrics_url: str
    books: Books
    tls: ssl.SSLContext | None = None

    @property
    def port(self) -> int:
        """The public port."""
        return int(self.base_url.rpartition(":")[2])

    def connect(self, *, source: str | None = None) -> RawConnection:
        """Open a connection."""
        return RawConnection.open(self.port, source=source, tls=self.tls)

    def exchange(
        self,
        body: bytes,
        *,
        token: str | None = None,
        path: str = "/x/eth/mainnet",
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
    ) -> Answer:
        """Send one request on a connection of its own."""
        with self.connect() as connection:
            return connection.exchange(path, body, {**JSON, **bearer(token), **(headers or {})}, method=method)

    def metrics(self) -> dict[str, float]:
        """Read the metrics page: sample to value."""
        with RawConnection.open(int(self.metrics_url.split(":")[2].partition("/")[0])) as connection:
            page = connection.exchange("/metrics", method="GET").body.decode()
        pairs = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
        return {sample: float(value) for sample, _, value in pairs}

    def children(self, prefix: str = "tg-") -> dict[str, int]:
        """Give the service's processes by name (Linux)."""
        names: dict[str, int] = {}
        for pid in descendants(self.program.pid):
            # It may end while it is read.
            with suppress(FileNotFoundError, ProcessLookupError):
                names[Path(f"/proc/{pid}/comm").read_text().strip()] = pid
        return {name: pid for name, pid in names.items() if name.startswith(prefix) and alive(pid)}

    def workers(self) -> dict[str, int]:
        """Give the worker processes by name."""
        return self.children("tg-worker-")

    def worker_of(self, connection: RawConnection) -> int:
        """Which worker holds the other end of a connection; 0 before one has accepted it."""
        inode = _inode(self.port, connection.local_port)
        for pid in self.workers().values():
            for link in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    if str(link.readlink()) == f"socket:[{inode}]":
                        return pid
                except FileNotFoundError:
                    continue
        return 0

    @contextmanager
    def spread(self, each: int = 2) -> Iterator[dict[int, list[RawConnection]]]:
        """Open connections until every worker holds this many, or more; give them by worker."""
        held: dict[int, list[RawConnection]] = {pid: [] for pid in self.workers().values()}
        with ExitStack() as opened:
            for _ in range(200):
                if all(len(connections) >= each for connections in held.values()):
                    yield held
                    return
                connection = opened.enter_context(self.connect())
                held[eventually(partial(self.worker_of, connection), what="the accept")].append(connection)
        raise AssertionError(f"the kernel does not spread connections: {held}")


def bearer(token: str | None) -> dict[str, str]:
    """Give the header for a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def seconds_until_revoked(books: Books, team: Team, *gateways: Gateway) -> float:
    """How long these go on with a token that was deleted; the quickest of three: other work may hold one up."""
    waited = []
    for _ in range(3):
        secret, token = books.token(team)
        statuses = partial(_statuses, gateways, secret)
        assert statuses() == {200}
        books.do(partial(_remove, token.id))
        started = time.monotonic()
        eventually(lambda current=statuses: current() == {401}, what="the revocation")  # type: ignore[misc]
        waited.append(time.monotonic() - started)
    return min(waited)


def _statuses(gateways: Sequence[Gateway], secret: str) -> set[int]:
    return {gateway.exchange(call("eth_chainId"), token=secret).status for gateway in gateways}


async def _remove(token_id: str, records: Repositories) -> object:
    return await records.tokens.remove(id=token_id)


def _inode(local: int, remote: int) -> str:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if [int(columns[n].rpartition(":")[2], 16) for n in (1, 2)] == [local, remote]:
            return columns[9]
    return "none"


def write_settings(
    folder: Path,
    networks: Mapping[str, Sequence[str | Mapping[str, object]]],
    settings: Mapping[str, Mapping[str, object]] | None = None,
) -> Path:
    """Write a settings file: upstreams (URLs or tables) by network, and tables on top of the usual ones."""
    usual = {"host": "127.0.0.1", "port": 0, "metrics_port": 0, "workers": 1, "grace_seconds": 10.0}
    tables = {name: dict(table) for name, table in (settings or {}).items()}
    tables["server"] = usual | tables.get("server", {})
    tables["logging"] = {"format": "json"} | tables.get("logging", {})
    lines = [f"data_dir = {json.dumps(str(folder / 'data'))}"]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    for path, upstreams in networks.items():
        rows = [{"url": given} if isinstance(given, str) else given for given in upstreams]
        heading = f"families.{path.replace('/', '.')}"
        if any(is_scripted(str(row["url"])) for row in rows) and heading not in tables:
            # A scripted node is no chain: each test wants to see its calls arrive.
            lines += [f"[{heading}]", "cache = false"]
        for number, row in enumerate(rows):
            lines.append(f"[[families.{path.replace('/', '.')}.upstreams]]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in {"name": f"n{number}", **row}.items()]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tollgate.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


@contextmanager
def serving(
    folder: Path,
    networks: Mapping[str, Sequence[str | Mapping[str, object]]],
    settings: Mapping[str, Mapping[str, object]] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    env: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[Gateway]:
    """Run `tollgate serve`; `tls` is what a client needs where the settings name a certificate.

    `env` is added to the environment of the service.
    """
    file = write_settings(folder, networks, settings)
    given = settings or {}
    books = Books(
        folder / "data",
        str(given.get("store", {}).get("url", "")),
        str(given.get("secrets", {}).get("pepper", "")),
    )
    argv = [TOLLGATE, "serve", "--config", str(file), *arguments]
    with running(argv, folder=folder / "output", ready=_ready, env=env, within=60, grace=20) as program:
        printed = _ready(program)
        assert printed is not None
        base_url = printed["endpoints"][0].partition("/x/")[0]
        yield Gateway(program, base_url, printed["metrics"], books, tls)


def refusal_to_start(file: Path, *, command: str = "serve") -> str:
    """Run a command that must not come up, and give its words; a trace is no word."""
    ended = subprocess.run(
        [TOLLGATE, command, "--config", str(file)], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr


def _ready(program: Program) -> dict[str, Any] | None:
    for line in program.err.read_text().splitlines():
        if line.startswith("{") and '"ready"' in line:
            printed: dict[str, Any] = json.loads(line)
            return printed
    return None


@dataclass(frozen=True)
class Demo:
    """A running demo and the one line that it printed."""

    program: Program
    printed: dict[str, Any]

    @property
    def port(self) -> int:
        """The public port."""
        return int(self.printed["base_url"].rpartition(":")[2])


@contextmanager
def demo(folder: Path, *arguments: str, past: bool = False) -> Iterator[Demo]:
    """Run `tollgate demo --json --port 0` with further arguments; its team has a past where one is wanted."""
    argv = [TOLLGATE, "demo", "--json", "--port", "0", *(() if past else ("--no-past",)), *arguments]
    environment = {"TMPDIR": str(folder)}
    folder.mkdir(parents=True, exist_ok=True)
    with running(
        argv,
        folder=folder / "output",
        ready=lambda started: started.lines(),
        env=environment,
        within=60,
        grace=20,
    ) as program:
        yield Demo(program, json.loads(program.lines()[0]))
