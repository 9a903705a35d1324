"""Calls through a real service, read by `tollgate rpc logs`: within two seconds, once each, by their team."""

from __future__ import annotations

import itertools
import json
import secrets
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parts.ports import free_port
from parts.processes import eventually
from parts.raw_http import call
from parts.stack import Stack, open_stack
from parts.tollgate import TOLLGATE, Gateway, serving
from parts.tool import Tool
from parts.upstream import failure, upstream
from tollgate.cli.rpc_logs import AWAY, BACK
from tollgate.core.entries import CallEntry, Entry, encode
from tollgate.ledger.segments import HIDDEN_SUFFIX, ID_BYTES, MAGIC, SUFFIX, frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parts.raw_http import Answer
    from tollgate.core.models import Domain, Token

pytestmark = pytest.mark.e2e

PAGE = {"Origin": "https://app.example.com", "User-Agent": "Mozilla/5.0 (test)"}


@dataclass(frozen=True)
class Service:
    """A running service with two teams, and a tool of a member of each."""

    stack: Stack
    folder: Path
    tool: Tool
    rival: Tool
    token: tuple[str, Token]
    slow: tuple[str, Token]
    domain: Domain

    def call(
        self,
        request_id: str,
        body: bytes = b"",
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a call with an id of its own."""
        return exchange(self.stack.gateway, request_id, body, token=token, headers=headers)

    def logs(self, *arguments: str, tool: Tool | None = None) -> dict[str, Any]:
        """Read logs as JSON."""
        ran = (tool or self.tool)("rpc", "logs", "--json", *arguments)
        assert ran.code == 0, ran.err
        read: dict[str, Any] = ran.json
        return read

    def calls(self, request_id: str) -> list[dict[str, Any]]:
        """The entries of a request as the tool shows them, once they are there."""
        headers = {"Authorization": f"Bearer {self.tool.variables['TOLLGATE_TOKEN']}"}

        def there() -> bool:
            # Not by the tool, whose own start takes a good part of that time.
            with self.stack.gateway.connect() as connection:
                page = connection.exchange(
                    "/api/v1/teams/acme/logs?limit=50", headers=headers, method="GET"
                ).json()
            return any(item["request_id"] == request_id for item in page["items"])

        eventually(there, what=f"the entries of {request_id}")
        return [item for item in self.logs("--limit", "50")["items"] if item["request_id"] == request_id]


def exchange(
    gateway: Gateway,
    request_id: str,
    body: bytes = b"",
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a call with an id of its own."""
    named = {"X-Request-Id": request_id, **(headers or {})}
    return gateway.exchange(body or call("eth_chainId"), token=token, headers=named)


_COUNT = itertools.count()


def new_id() -> str:
    """A request id that no other call has."""
    return f"call-{next(_COUNT)}-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("logs")
    with open_stack(folder, {"server": {"workers": 2}}) as stack:
        stack.node.on("eth_call", failure({"code": 3, "message": "execution reverted"}))
        books = stack.gateway.books
        books.team("rival")
        books.account("ada@example.com", acme="owner")
        books.account("eve@example.com", rival="owner")
        signed_out = Tool(folder / "home", stack.gateway.base_url, {"TOLLGATE_TEAM": "acme"})
        yield Service(
            stack,
            folder,
            signed_out.with_token(books.personal_token("ada@example.com")),
            signed_out.with_token(books.personal_token("eve@example.com")),
            books.token(stack.team, name="ci"),
            books.token(stack.team, name="slow", requests_per_second=1),
            books.domain(stack.team, "example.com"),
        )


# ---- what is written down


def test_a_call_with_a_token(service: Service) -> None:
    secret, token = service.token
    name = new_id()
    body = call("eth_chainId")
    assert service.call(name, body, token=secret, headers={"User-Agent": "curl/8"}).status == 200
    answered = time.time()
    (item,) = service.calls(name)
    assert abs(answered - datetime.fromisoformat(item["time"]).timestamp()) < 1
    assert item["duration_us"] > 0
    expected = {
        "request_id": name,
        "team": "acme",
        "token_id": token.id,
        "token_name": "ci",
        "domain_id": None,
        "domain": None,
        "address": "127.0.0.1",
        "user_agent": "curl/8",
        "origin": None,
        "family": "eth",
        "network": "mainnet",
        "method": "eth_chainId",
        "status": 200,
        "outcome": "ok",
        "error_code": None,
        "request_bytes": len(body),
        "upstream": "n0",
        "attempts": 1,
        "cache": "bypass",
        "billable": True,
        "cost_micros": 0,
        "count": 1,
    }
    assert {key: item[key] for key in expected} == expected


def test_a_call_of_a_whitelisted_page(service: Service) -> None:
    name = new_id()
    assert service.call(name, headers=PAGE).status == 200
    (item,) = service.calls(name)
    assert (item["token_id"], item["domain_id"], item["domain"]) == (None, service.domain.id, "example.com")
    assert (item["origin"], item["user_agent"]) == (PAGE["Origin"], PAGE["User-Agent"])
    assert (item["outcome"], item["billable"]) == ("ok", True)


def test_each_call_of_a_batch(service: Service) -> None:
    name = new_id()
    body = b"[%b,%b]" % (call("eth_chainId"), call("eth_blockNumber", id=2))
    assert service.call(name, body, token=service.token[0]).status == 200
    items = service.calls(name)
    assert sorted(item["method"] for item in items) == ["eth_blockNumber", "eth_chainId"]
    assert len({item["id"] for item in items}) == 2


def test_an_error_of_the_node(service: Service) -> None:
    name = new_id()
    assert service.call(name, call("eth_call"), token=service.token[0]).status == 200
    (item,) = service.calls(name)
    assert (item["status"], item["outcome"], item["error_code"]) == (200, "node_error", 3)
    assert item["billable"] is True
    assert name in {each["request_id"] for each in service.logs("--errors")["items"]}


def test_a_refusal(service: Service) -> None:
    name = new_id()
    assert service.call(name, call("admin_peers"), token=service.token[0]).status == 403
    (item,) = service.calls(name)
    assert (item["status"], item["outcome"], item["error_code"]) == (403, "method_not_allowed", -32601)
    assert (item["method"], item["billable"], item["upstream"]) == ("admin_peers", False, None)
    assert name in {each["request_id"] for each in service.logs("--status", "403")["items"]}


def test_a_call_over_the_limit(service: Service) -> None:
    names = [new_id() for _ in range(3)]
    statuses = [service.call(name, token=service.slow[0]).status for name in names]
    assert 429 in statuses
    (item,) = service.calls(names[statuses.index(429)])
    assert (item["status"], item["outcome"], item["error_code"]) == (429, "rate_limited", -32005)
    assert (item["token_name"], item["method"]) == ("slow", "eth_chainId")


# ---- who reads what


def test_another_team_sees_nothing(service: Service) -> None:
    service.call(name := new_id(), token=service.token[0])
    service.calls(name)
    assert service.logs("--team", "rival", tool=service.rival)["items"] == []
    foreign = service.logs("--team", "rival", "--token", service.token[1].id, tool=service.rival)
    assert (foreign["items"], foreign["next"]) == ([], None)
    ran = service.rival("rpc", "logs", "--team", "acme")
    assert (ran.code, ran.out) == (5, "")
    cursor = service.logs("--team", "acme", "--limit", "1")["next"]
    ran = service.rival("rpc", "logs", "--team", "rival", "--after", cursor)
    assert ran.code == 1
    assert "not one of this team's logs" in ran.err


def test_filters_name_tokens_and_domains(service: Service) -> None:
    service.call(mine := new_id(), token=service.token[0])
    service.call(page := new_id(), headers=PAGE)
    service.calls(mine)
    service.calls(page)
    for name in ("ci", service.token[1].id):
        found = {item["request_id"] for item in service.logs("--token", name, "--limit", "1000")["items"]}
        assert mine in found
        assert page not in found
    for name in ("example.com", service.domain.id):
        found = {item["request_id"] for item in service.logs("--domain", name, "--limit", "1000")["items"]}
        assert page in found
        assert mine not in found
    unknown = service.tool("rpc", "logs", "--team", "acme", "--token", "nobody")
    assert unknown.code == 3
    assert "tollgate rpc tokens list --team acme" in unknown.err


def test_logs_of_a_deleted_token_are_still_read_by_its_id(service: Service) -> None:
    secret, token = service.stack.gateway.books.token(service.stack.team)
    service.call(name := new_id(), token=secret)
    service.calls(name)
    assert service.tool("rpc", "tokens", "delete", token.id, "--yes").code == 0
    assert [item["request_id"] for item in service.logs("--token", token.id)["items"]] == [name]


# ---- pages


def drain(service: Service, name: str, age: float) -> None:
    """Leave what a dead worker left behind: a segment without an owner, with a record of an earlier time."""
    entry = Entry(
        at=time.time() - age,
        team_id=service.stack.team.id,
        source_id=service.token[1].id,
        network="eth/mainnet",
        source_name="ci",
        status=200,
        calls=(CallEntry("eth_chainId", "ok"),),
        request_id=name.encode(),
    )
    spool = service.folder / "data" / "spool"
    identity = secrets.token_bytes(ID_BYTES)
    hidden = spool / f"00000000000000-{identity.hex()}{HIDDEN_SUFFIX}"
    hidden.write_bytes(MAGIC + identity + frame(encode(entry)))
    hidden.rename(hidden.with_suffix(SUFFIX))


def test_every_call_of_before_appears_once_while_new_and_late_ones_arrive(service: Service) -> None:
    names = [new_id() for _ in range(8)]
    for name in names:
        service.call(name, token=service.token[0])
    service.calls(names[-1])
    whole = [item["id"] for item in service.logs("--limit", "1000")["items"]]
    seen: list[str] = []
    page = service.logs("--limit", str(len(whole) // 4))
    while True:
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        service.call(new := new_id(), token=service.token[0])
        drain(service, late := new_id(), 3_600)
        service.calls(new)
        service.calls(late)
        page = service.logs("--limit", str(len(whole) // 4), "--after", page["next"])
    assert seen == whole


def test_since_is_about_the_time_of_the_call_itself(service: Service) -> None:
    drain(service, late := new_id(), 7_200)
    service.calls(late)
    service.call(now := new_id(), token=service.token[0])
    service.calls(now)

    def since(duration: str) -> set[str]:
        return {item["request_id"] for item in service.logs("--since", duration, "--limit", "1000")["items"]}

    assert {now, late} <= since("3h")
    assert now in since("30m")
    assert late not in since("30m")
    assert since("0s") == set()
    wrong = service.tool("rpc", "logs", "--since", "soon")
    assert wrong.code == 2
    assert "neither a duration (30m, 24h, 7d) nor a time" in wrong.err


# ---- following


class Follower:
    """`tollgate rpc logs --follow` as a process of its own, its output in files."""

    def __init__(self, popen: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.popen, self._out, self._err = popen, out, err

    def names(self) -> list[str]:
        """The calls that it has shown."""
        text = self._out.read_text()
        return [json.loads(line)["request_id"] for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def errors(self) -> str:
        return self._err.read_text()

    def interrupt(self) -> int:
        """Do what Ctrl-C does."""
        self.popen.send_signal(signal.SIGINT)
        return self.popen.wait(30)


@contextmanager
def following(tool: Tool, tmp_path: Path, *arguments: str) -> Iterator[Follower]:
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("xb") as stdout, err.open("xb") as stderr:
        popen = subprocess.Popen(
            [TOLLGATE, "rpc", "logs", "--follow", "--json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=tool.environment,
        )
    try:
        yield Follower(popen, out, err)
    finally:
        popen.kill()
        popen.wait()


def test_follow_shows_calls_as_they_come(service: Service, tmp_path: Path) -> None:
    service.call(first := new_id(), token=service.token[0])
    service.calls(first)
    with following(service.tool, tmp_path, "--limit", "1", "--token", "ci") as follower:
        eventually(lambda: first in follower.names(), what="the newest call of before")
        names = [new_id() for _ in range(5)]
        for name in names:
            service.call(new_id(), headers=PAGE)  # not of this token
            service.call(name, token=service.token[0])
        eventually(lambda: names[-1] in follower.names(), what="the calls")
        waited = []
        for _ in range(3):
            names.append(new_id())
            started = time.monotonic()
            service.call(names[-1], token=service.token[0])
            eventually(lambda: names[-1] in follower.names(), what="one more call")
            waited.append(time.monotonic() - started)
        # Other work on the machine may hold one of them up.
        assert min(waited) < 1.5
        shown = follower.names()
        # Two workers write at once; the order is that of the ledger.
        assert (shown[0], sorted(shown[1:])) == (first, sorted(names))
        assert follower.interrupt() == 130
        assert "Traceback" not in follower.errors()


def test_follow_outlives_a_restart_of_the_service(tmp_path: Path) -> None:
    port = free_port()
    with upstream() as node:
        restarted = partial(serving, tmp_path, {"eth/mainnet": [node.url]}, {"server": {"port": port}})
        with restarted() as gateway:
            token = gateway.books.token(gateway.books.team())[0]
            gateway.books.account("ada@example.com", acme="owner")
            personal = gateway.books.personal_token("ada@example.com")
            tool = Tool(tmp_path / "home", gateway.base_url, {"TOLLGATE_TEAM": "acme"}).with_token(personal)
            with following(tool, tmp_path) as follower:
                names = [new_id()]
                exchange(gateway, names[0], token=token)
                eventually(lambda: names[0] in follower.names(), what="the first call")
                names += [new_id() for _ in range(20)]
                for name in names[1:]:
                    exchange(gateway, name, token=token)
                gateway.program.stop(20)
                eventually(lambda: AWAY in follower.errors(), what="the word of the outage")
                with restarted() as again:
                    names.append(new_id())
                    exchange(again, names[-1], token=token)
                    eventually(lambda: names[-1] in follower.names(), within=60, what="the last call")
                    eventually(lambda: BACK in follower.errors(), what="the word of its end")
                    assert follower.names() == names, "in their order, none missing, none twice"
                    assert follower.interrupt() == 130


def test_a_person_sees_a_table(service: Service) -> None:
    service.call(name := new_id(), call("eth_call"), token=service.token[0])
    service.calls(name)
    ran = service.tool("rpc", "logs", "--errors", "--limit", "1000")
    assert ran.code == 0
    title, *lines = ran.out.splitlines()
    assert title.split() == ["TIME", "METHOD", "NETWORK", "STATUS", "DURATION", "CALLER", "COST"]
    assert any("eth_call" in line and "200 node_error 3" in line and "ci" in line for line in lines)
