"""The console: what pages weigh and how soon they are seen in Chromium, what they cost the server over a large
ledger, and what open live tails cost while calls arrive.

The demo serves the pages that are weighed and the tails; the large ledger is read in this process, so that only
the server's own time counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import sync_playwright

from bench import logs, machine
from bench.gateway import find_tollgate
from bench.goals import Goal
from bench.plan import BenchError
from bench.report import RESULTS
from tollgate.control.app import control_app
from tollgate.control.plane import ControlPlane
from tollgate.control.service_context import ClientInfo
from tollgate.core import secrets
from tollgate.core.people import Account, Member
from tollgate.processes.bootstrap import Bootstrap, prepare
from tollgate.settings.model import Settings
from tollgate.store import engines

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_ROWS = 10_000_000
COLD_BYTES, WARM_BYTES, PAINT_MS = 60_000, 15_000, 500.0
OVERVIEW_MS, LOGS_MS = 100.0, 50.0
TAILS, TAIL_SECONDS, BATCH, BATCHES_A_SECOND = 200, 10, 100, 10
TAIL_CORES, TAILS_OF_ADDRESS, TAILS_OF_ACCOUNT = 0.5, 25, 5
ROUNDS = 20
# Of each page, the first of them with nothing in the browser's cache.
LOADS = 7
TEAM = "/console/teams/demo"
PAGES = (
    *(TEAM, f"{TEAM}/endpoints", f"{TEAM}/tokens", f"{TEAM}/tokens/new", f"{TEAM}/domains", f"{TEAM}/logs"),
    *(f"{TEAM}/usage", f"{TEAM}/invoices", f"{TEAM}/members", f"{TEAM}/audit", f"{TEAM}/settings"),
    *("/console/teams", "/console/account", "/console/operator"),
)
WEIGHT = """["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
    .reduce((sum, entry) => sum + entry.transferSize, 0)"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def run(count: int, output: Path | None, progress: logs.Progress) -> int:
    """Measure, print and write; return the exit code."""
    about = machine.describe()
    with _demo() as demo:
        progress("the demo runs: weighing pages")
        goals = _browsed(demo)
        progress(f"{TAILS} live tails for {TAIL_SECONDS} s")
        goals += asyncio.run(_tails(demo))
    progress(f"seeding {count:,} rows")
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-console-") as folder:
        bootstrap, now = prepare(Settings(data_dir=folder)), time.time()
        logs.seed(bootstrap, count, now, progress)
        goals += asyncio.run(_served(bootstrap, now, count))
    for goal in goals:
        print(f"{goal.verdict:<8} {goal.value:>10,.2f} {goal.unit:<6} (bar {goal.bar:g} {goal.unit})  {goal.name}")
    path = output or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-console.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": about, "rows": count, "goals": [*map(asdict, goals)]}
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 0 if all(goal.verdict == "reached" for goal in goals) else 1


def _goal(name: str, bar: float, unit: str, value: float) -> Goal:
    return Goal(name, bar, unit, value, "reached" if value <= bar else "missed")


# --- The demo -----------------------------------------------------------------------------------------------


@contextmanager
def _demo() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-demo-") as folder:
        argv = [str(find_tollgate(None)), "demo", "--json", "--port", "0", "--workers", "1"]
        environment = {**os.environ, "TMPDIR": folder}
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise BenchError("the demo does not start: run `tollgate demo` and see why")
            yield {**json.loads(line), "pid": process.pid}
        finally:
            process.terminate()
            process.wait(30)


def _browsed(demo: dict[str, Any]) -> list[Goal]:
    """Weigh every page, cold and then warm, and see how soon it is painted."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        raise BenchError("Chromium is needed, on the path as chromium, chromium-browser or google-chrome")
    base = demo["base_url"]
    cold: list[float] = []
    warm: list[float] = []
    paints: dict[str, float] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"{base}/console/sign-in")
        page.fill("#email", demo["email"])
        page.fill("#password", demo["password"])
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.wait_for_url("**/console/teams/**")
        cookies = page.context.cookies()
        for path in PAGES:
            fresh = browser.new_context()
            fresh.add_cookies(cast("Any", cookies))
            page = fresh.new_page()
            seen = []
            for weights in (cold, *[warm] * (LOADS - 1)):
                page.goto(f"{base}{path}")
                page.wait_for_load_state("networkidle")
                weights.append(float(page.evaluate(WEIGHT)))
                seen.append(float(page.evaluate(PAINT)))
            paints[path] = statistics.median(seen)
            fresh.close()
        browser.close()
    for path, paint in sorted(paints.items(), key=lambda each: -each[1]):
        print(f"{paint:>10,.1f} ms     {path}")
    slowest = max(paints, key=lambda path: paints[path])
    return [
        _goal("heaviest page with all it loads, cold", COLD_BYTES, "bytes", max(cold)),
        _goal("heaviest page, warm", WARM_BYTES, "bytes", max(warm)),
        _goal(
            f"first contentful paint on loopback, median of {LOADS} loads, of the slowest page ({slowest})",
            PAINT_MS,
            "ms",
            paints[slowest],
        ),
    ]


# --- Tails --------------------------------------------------------------------------------------------------


async def _tails(demo: dict[str, Any]) -> list[Goal]:
    """Open tails, let calls arrive, and see what the control process spends and holds."""
    parts = urlsplit(demo["base_url"])
    async with httpx.AsyncClient(base_url=demo["base_url"], follow_redirects=False) as client:
        cookies = await _sessions(demo["data_dir"], -(-TAILS // TAILS_OF_ACCOUNT))
        client.cookies.set("tollgate", cookies[0])
        path = "/console/teams/demo/logs/tail"
        seen = [0]
        tails = []
        for number in range(TAILS):
            # One after the other, as people come: a worker forwards 64 requests at once.
            # From several addresses and accounts: of the places for tails, each has a part.
            source = (f"127.0.0.{2 + number // TAILS_OF_ADDRESS}", 0)
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port, limit=1 << 20, local_addr=source
            )
            cookie = cookies[number // TAILS_OF_ACCOUNT]
            head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nCookie: tollgate={cookie}\r\n\r\n"
            writer.write(head.encode())
            if b" 200 " not in await reader.readline():
                raise BenchError("a tail is refused")
            tails.append(asyncio.ensure_future(_tail(reader, writer, seen)))
        calls = asyncio.ensure_future(_calls(demo))
        await asyncio.sleep(3)
        pid = _control(demo["pid"])
        started, before, held, events = time.monotonic(), _cpu(pid), _rss(pid), seen[0]
        slowest = 0.0
        while time.monotonic() - started < TAIL_SECONDS:
            sent_at = time.monotonic()
            (await client.get("/console/teams/demo/tokens")).raise_for_status()
            slowest = max(slowest, time.monotonic() - sent_at)
            await asyncio.sleep(0.5)
        spent = time.monotonic() - started
        cores, grown, got = (_cpu(pid) - before) / spent, _rss(pid) - held, seen[0] - events
        for task in (*tails, calls):
            task.cancel()
        await asyncio.gather(*tails, calls, return_exceptions=True)
    if got < TAILS * TAIL_SECONDS // 2:
        raise BenchError(f"{TAILS} tails got only {got} events")
    rows = BATCH * BATCHES_A_SECOND
    return [
        _goal(f"control process, {TAILS} tails, {rows:,} rows a second", TAIL_CORES, "cores", cores),
        _goal(f"growth of its memory in {TAIL_SECONDS} s", 20.0, "MB", grown / 1e6),
        _goal("slowest page meanwhile", 500.0, "ms", slowest * 1e3),
    ]


async def _sessions(data_dir: str, count: int) -> list[str]:
    """Cookies of so many members of the demo's team, each signed in."""
    now = time.time()
    plane = _plane(prepare(Settings(data_dir=data_dir)), now)
    cookies = []
    for number in range(count):
        account = Account(
            secrets.new_id("acc"), f"reader{number}@example.com", time.time(), verified_at=time.time()
        )
        async with plane.context.store.changing() as records:
            await records.accounts.add(account)
            team = await records.teams.find(name="demo")
            if team is None:
                raise BenchError("the demo has no team demo")
            await records.members.add(Member(secrets.new_id("mem"), team.id, account.id, "viewer", now))
        cookies.append(await plane.logins.open_session(ClientInfo("127.0.0.1", "bench", "bench"), account))
    await plane.close()
    return cookies


async def _tail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[int]) -> None:
    try:
        while line := await reader.readline():
            seen[0] += line.startswith(b"data: {")
    finally:
        writer.close()


async def _calls(demo: dict[str, Any]) -> None:
    body = [{"jsonrpc": "2.0", "id": each, "method": "eth_chainId", "params": []} for each in range(BATCH)]
    headers = {"Authorization": f"Bearer {demo['token']}"}
    async with httpx.AsyncClient(base_url=demo["base_url"], headers=headers) as client:
        while True:
            started = time.monotonic()
            (await client.post("/x/eth/mainnet", json=body)).raise_for_status()
            await asyncio.sleep(max(0.0, 1 / BATCHES_A_SECOND - (time.monotonic() - started)))


def _control(parent: int) -> int:
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if Path(f"/proc/{pid}/comm").read_text().strip() == "tg-control":
            return int(pid)
    raise BenchError("the demo has no control process")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- Over a large ledger ------------------------------------------------------------------------------------


def _plane(bootstrap: Bootstrap, now: float) -> ControlPlane:
    return ControlPlane(
        engines.open_store(bootstrap.store_url),
        bootstrap.settings,
        bootstrap.pepper,
        "http://x",
        lambda: now,
        logbook=engines.open_logbook(bootstrap.ledger_url),
        accountbook=engines.open_accountbook(bootstrap.ledger_url),
    )


async def _served(bootstrap: Bootstrap, now: float, count: int) -> list[Goal]:
    """Requests pages in this process."""
    plane = _plane(bootstrap, now)
    async with plane.context.store.changing() as records:
        await logs.add_people(records, secrets.digest(b"none", bootstrap.pepper), now)
    account = await plane.accounts.find("bench@example.com")
    if account is None:
        raise BenchError("the team's account is gone")
    cookie = await plane.logins.open_session(ClientInfo("127.0.0.1", "bench", "bench"), account)
    transport = httpx.ASGITransport(cast("Any", control_app(plane)))
    async with httpx.AsyncClient(transport=transport, base_url="http://x", cookies={"tollgate": cookie}) as client:
        overview = await _median(client, "/console/teams/bench")
        page = await _median(client, "/console/teams/bench/logs")
    await plane.close()
    return [
        _goal(f"overview over {count:,} rows, p50 on the server", OVERVIEW_MS, "ms", overview),
        _goal(f"first page of the log explorer over {count:,} rows, p50", LOGS_MS, "ms", page),
    ]


async def _median(client: httpx.AsyncClient, path: str) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        answer = await client.get(path)
        times.append((time.perf_counter() - started) * 1e3)
        answer.raise_for_status()
        if "<main" not in answer.text or answer.status_code != 200:
            raise BenchError(f"{path} is no page")
    return statistics.median(times)
