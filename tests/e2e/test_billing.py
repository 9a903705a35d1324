"""From a call to usage, a cap, an alert and an invoice: real processes, the tool, a webhook with TLS and DNS."""

from __future__ import annotations

import csv
import hashlib
import hmac
import http.server
import io
import json
import sqlite3
import ssl
import subprocess
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from parts.certs import make_certificate
from parts.dns import nameserver
from parts.ports import LOOPBACK
from parts.processes import eventually
from parts.raw_http import call
from parts.stack import Stack, open_stack, reason
from parts.tollgate import TOLLGATE, serving
from parts.tool import Tool
from tollgate.core.entries import CallEntry, Entry, encode
from tollgate.core.months import month_of, previous_month, start_of
from tollgate.ledger.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.e2e

FREE = 5
EACH = 5
"""Micro-dollars."""
BILLING = {"free_requests": FREE, "grace_hours": 0}
CHAIN_ID = call("eth_chainId")
HOST = "hooks.example"


@dataclass(frozen=True)
class Shop:
    """A running service, a team that calls it, and its owner's tool."""

    stack: Stack
    tool: Tool
    folder: Path

    def call(self, count: int = 1) -> list[int]:
        """Call so often; the statuses of the answers."""
        return [self.stack.exchange(CHAIN_ID).status for _ in range(count)]

    def ran(self, *arguments: str) -> Any:
        """Run the tool for the team, and give what it prints for programs."""
        output = self.tool(*arguments, "--team", "acme", "--json")
        assert output.code == 0, output.err
        return output.json

    def used(self, count: int) -> Any:
        """Wait until so many requests are in the month's usage."""
        return eventually(
            lambda: next((found for found in [self.ran("usage")] if found["requests"] == count), None),
            what=f"a usage of {count} requests",
        )

    def final_ones(self) -> list[Any]:
        """The invoices that are final."""
        return [each for each in self.ran("invoices", "list")["items"] if each["status"] == "final"]

    def doctor(self) -> subprocess.CompletedProcess[str]:
        """Run the doctor, as the operator does on the machine of the service."""
        config = str(self.folder / "tollgate.toml")
        return subprocess.run(
            [TOLLGATE, "doctor", "--json", "--config", config],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


@contextmanager
def shop(folder: Path, settings: Mapping[str, Mapping[str, object]] | None = None) -> Iterator[Shop]:
    with open_stack(folder, {"billing": BILLING, **(settings or {})}) as stack:
        stack.gateway.books.account("ann@example.com", acme="owner")
        token = stack.gateway.books.personal_token("ann@example.com")
        yield Shop(stack, Tool(folder / "home", stack.gateway.base_url).with_token(token), folder)


# ---- usage and caps


def test_calls_are_in_the_usage_and_cost_what_the_price_specifies(tmp_path: Path) -> None:
    with shop(tmp_path) as service:
        assert service.call(FREE + 2) == [200] * (FREE + 2)
        found = service.used(FREE + 2)
        assert (found["billable_requests"], found["free_left"], found["cost_micros"]) == (FREE + 2, 0, 2 * EACH)
        for by in ("token", "domain", "network", "method", "day"):
            items = service.ran("usage", "--by", by)["items"]
            assert sum(item["requests"] for item in items) == FREE + 2
            assert sum(item["cost_micros"] for item in items) == 2 * EACH
        (draft,) = service.ran("invoices", "list")["items"]
        assert (draft["status"], draft["cost_micros"]) == ("draft", 2 * EACH)
        assert service.doctor().returncode == 0


def test_a_cap_stops_calls_within_five_seconds_and_no_cent_more_is_charged(tmp_path: Path) -> None:
    with shop(tmp_path) as service:
        service.ran("usage", "cap", "0.00002")  # four requests beyond the free ones
        deadline = time.monotonic() + 60
        answered = 0
        # A second at most passes before the first calls under a new cap are counted: 429.
        while (answer := service.stack.exchange(CHAIN_ID)).status in (200, 429):
            answered += answer.status == 200
            if answered == FREE + 4:
                reached = time.monotonic()
            assert time.monotonic() < deadline
        assert time.monotonic() - reached < 5
        assert (answer.status, reason(answer)) == (402, "spending_cap")

        eventually(lambda: service.ran("usage")["capped"], what="the team is shown as capped")
        found = service.ran("usage")
        assert found["cost_micros"] == 4 * EACH
        assert found["billable_requests"] >= FREE + 4

        service.ran("usage", "cap", "none")
        eventually(lambda: service.call() == [200], what="the end of the cap")
        assert service.doctor().returncode == 0


# ---- alerts


@dataclass
class Receiver:
    """A webhook's receiver: keeps every call, and fails as often as it is set to."""

    port: int = 0
    calls: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def thresholds(self) -> list[int]:
        return sorted(json.loads(body)["threshold_percent"] for _, body in list(self.calls))


@contextmanager
def receiving(context: ssl.SSLContext) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.calls.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        receiver.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def test_a_webhook_is_called_once_for_each_threshold_and_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path, HOST)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    with (
        nameserver(tmp_path / "dns", addresses={HOST: [LOOPBACK]}) as dns,
        receiving(certificate.server_context()) as receiver,
        shop(
            tmp_path / "service",
            {"whitelist": {"resolvers": [dns.address]}, "billing": {**BILLING, "allow_private_webhooks": True}},
        ) as service,
    ):
        service.ran("usage", "cap", "0.00005")  # ten requests beyond the free ones
        chosen = service.ran("usage", "alerts", "--webhook", f"https://{HOST}:{receiver.port}/hook")
        service.call(FREE + 5)
        eventually(lambda: receiver.thresholds == [50], what="the first alert")
        eventually(lambda: service.call() == [402], what="the end of what the cap allows")
        eventually(lambda: receiver.thresholds == [50, 80, 100], what="all alerts")

        headers, body = receiver.calls[0]
        moment, _, mac = headers["x-tollgate-signature"].partition(",")
        signed = moment.removeprefix("t=").encode() + b"." + body
        expected = hmac.new(chosen["webhook_secret"].encode(), signed, hashlib.sha256).hexdigest()
        assert mac == f"v1={expected}"
        assert abs(int(moment.removeprefix("t=")) - time.time()) < 60
        output = json.loads(body)
        assert (output["team"]["name"], output["spending_cap_micros"]) == ("acme", 50)

        for file in (tmp_path / "service" / "data").glob("control.db*"):
            assert chosen["webhook_secret"].encode() not in file.read_bytes()


def test_no_webhook_inside_the_private_network_is_called(tmp_path: Path) -> None:
    with (
        nameserver(tmp_path / "dns", addresses={HOST: [LOOPBACK]}) as dns,
        shop(tmp_path / "service", {"whitelist": {"resolvers": [dns.address]}}) as service,
    ):
        service.ran("usage", "cap", "0")
        service.ran("usage", "alerts", "--webhook", f"https://{HOST}/hook")
        service.call(FREE)
        output = service.stack.gateway.program.err
        eventually(lambda: "has a loopback address" in output.read_text(), what="the refusal in the log")
        assert "/hook" not in output.read_text()


# ---- invoices


def leave_records(spool: Path, team: str, at: float, count: int) -> None:
    """Leave the segment of a worker that died."""
    spool.mkdir(parents=True, exist_ok=True)
    writer = Spool(spool, segment_bytes=1 << 20, segment_seconds=10, max_held_bytes=1 << 20, now=lambda: at)
    for number in range(count):
        calls = (CallEntry("eth_call", "ok"),)
        left = Entry(
            at=at,
            team_id=team,
            source_id="tok_1",
            network="eth/mainnet",
            source_name="ci",
            status=200,
            calls=calls,
            request_id=b"%d" % number,
        )
        writer.append(encode(left))
    writer.close()


def test_a_month_that_is_over_becomes_final_and_late_calls_are_on_the_next_invoice(tmp_path: Path) -> None:
    now = time.time()
    month = month_of(now)
    before = previous_month(month)
    earlier = start_of(before) + 3_600
    with shop(tmp_path) as service:
        team = service.stack.team.id
        spool = tmp_path / "data" / "spool"
        # The last month was closed, empty, when the service started; an older one is still open.
        leave_records(spool, team, start_of(previous_month(before)) + 60, FREE + 3)
        leave_records(spool, team, earlier, 4)
        service.used(4)
        (draft,) = [each for each in service.ran("invoices", "list")["items"] if each["month"] == month]
        shown = service.ran("invoices", "show", month)
        assert draft["status"] == shown["status"] == "draft"
        assert [(line["kind"], line["of_month"], line["requests"]) for line in shown["lines"]] == [
            ("free", before, 4),
            ("rounding", None, None),
        ]

    # The next start finds a month with usage whose grace is over.
    with open_again(tmp_path, service) as again:
        oldest = previous_month(before)
        final = eventually(again.final_ones, what="the final invoice")[0]
        assert (final["month"], final["billable_requests"], final["cost_micros"]) == (oldest, FREE + 3, 3 * EACH)
        whole = again.ran("invoices", "show", oldest)
        assert sum(line["amount_micros"] for line in whole["lines"]) == whole["total_cents"] * 10_000
        table = again.tool("invoices", "show", oldest, "--team", "acme", "--csv")
        rows = list(csv.DictReader(io.StringIO(table.out)))
        assert [row["kind"] for row in rows] == ["free", "billed", "rounding", "total"]

        leave_records(tmp_path / "data" / "spool", service.stack.team.id, start_of(oldest), 2)
        again.used(6)
        assert again.ran("invoices", "show", oldest) == whole
        checked = again.doctor()
        assert (checked.returncode, json.loads(checked.stdout)["ok"]) == (0, True), checked.stdout


@contextmanager
def open_again(folder: Path, before: Shop) -> Iterator[Shop]:
    """Run the service again on the same data."""
    networks = {"eth/mainnet": ["http://127.0.0.1:1"]}
    with serving(folder, networks, {"billing": BILLING}) as gateway:
        stack = Stack(gateway, before.stack.node, before.stack.team, before.stack.token)
        tool = Tool(folder / "home", gateway.base_url, before.tool.variables)
        yield Shop(stack, tool, folder)


# ---- the doctor


def test_the_doctor_shows_a_hand_in_the_ledger(tmp_path: Path) -> None:
    with shop(tmp_path) as service:
        service.call(3)
        service.used(3)
    assert service.doctor().returncode == 0
    with closing(sqlite3.connect(tmp_path / "data" / "ledger.db")) as connection, connection:
        connection.execute("UPDATE months SET requests = requests + 1")
    output = service.doctor()
    assert output.returncode == 1
    (wrong,) = [check for check in json.loads(output.stdout)["checks"] if not check["ok"]]
    assert wrong["name"] == "usage"
    assert wrong["differences"][0].endswith("usage 3, months 4 billable requests (-1)")
