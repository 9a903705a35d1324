"""`tollgate upstreams`: what is shown of the file that the prober keeps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tollgate.api.operator import ShownNetwork, ShownUpstream
from tollgate.core.upstreams import FILE, Shown

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Ran, Tool

HEALTHY: dict[str, Any] = {
    "name": "alpha",
    "state": "up",
    "reason": "",
    "since": 1.0,
    "head": 100,
    "behind": 0,
    "finalized": 36,
    "chain_id": "0x1",
    "probe_ms": 1.25,
    "probe_calls": 10.9,
    "listening": True,
    "calls": 0,
    "failures": 0,
    "error_rate": None,
    "latency_ms": None,
    "p95_ms": None,
    "breaker": "closed",
    "open_workers": 0,
    "in_flight": 0,
}
BUSY = {"calls": 200, "failures": 3, "error_rate": 0.015, "latency_ms": 12.34, "p95_ms": 20.0}


def write(folder: Path, *upstreams: dict[str, Any], age: float = 0.0) -> None:
    network = ShownNetwork(
        network="eth/mainnet",
        head=100,
        finalized=36,
        chain_id="0x1",
        upstreams=tuple(ShownUpstream(**{**HEALTHY, **each}) for each in upstreams),
    )
    (folder / FILE).write_bytes(msgspec.json.encode(Shown(at=time.time() - age, networks=(network,))))


def run(tool: Tool, folder: Path, *arguments: str) -> Ran:
    return tool.run("upstreams", *arguments, env={"TOLLGATE_DATA_DIR": str(folder)})


def test_a_line_for_each_upstream(tool: Tool, tmp_path: Path) -> None:
    write(
        tmp_path,
        {},
        {"name": "beta", "state": "lagging", "reason": "7 blocks behind", "head": 93, "behind": 7, **BUSY},
        {
            "name": "c",
            "state": "down",
            "reason": "refuses connections",
            "head": None,
            "breaker": "open",
            "probe_ms": 0.0,
        }
        | {"open_workers": 2},
        {"name": "d", "breaker": "half_open"},
    )
    ran = run(tool, tmp_path)
    assert ran.code == 0
    # Four times 10.9 calls a minute, for 43,200 minutes, at 5 USD a million.
    assert "about 1.9 million calls a month, 9.42 USD at this service's own price" in ran.err
    assert ran.out.splitlines() == [
        "NETWORK      UPSTREAM  STATE    REASON               HEAD  BEHIND  ERRORS  LATENCY  BREAKER    PROBES",
        "eth/mainnet  alpha     up       -                    100   0       -       1.2 ms   closed     10.9",
        "eth/mainnet  beta      lagging  7 blocks behind      93    7       1.5 %   12.3 ms  closed     10.9",
        "eth/mainnet  c         down     refuses connections  -     -       -       -        open (2)   10.9",
        "eth/mainnet  d         up       -                    100   0       -       1.2 ms   half open  10.9",
    ]


def test_json_has_everything(tool: Tool, tmp_path: Path) -> None:
    write(tmp_path, BUSY)
    ran = run(tool, tmp_path, "--json")
    (network,) = ran.json["networks"]
    assert (ran.code, network["head"], network["finalized"]) == (0, 100, 36)
    assert network["upstreams"] == [{**HEALTHY, **BUSY}]


def test_settings_may_come_from_a_file(tool: Tool, tmp_path: Path) -> None:
    file = tmp_path / "tollgate.toml"
    file.write_text(f'data_dir = "{tmp_path}"\n')
    write(tmp_path, {})
    assert tool.run("upstreams", "--config", str(file)).code == 0


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_without_a_service_that_is_reported(tool: Tool, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = run(tool, tmp_path, *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert f"No service runs on {tmp_path}. Start it with `tollgate serve`" in ran.err


def test_outdated_status_is_not_shown(tool: Tool, tmp_path: Path) -> None:
    write(tmp_path, {}, age=42)
    ran = run(tool, tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert "is 42 s old: the service has ended" in ran.err


@pytest.mark.parametrize("content", [b"", b"{", b'{"at": "soon"}', b"\xff"])
def test_another_kind_of_file_in_its_place_is_reported(tool: Tool, tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    ran = run(tool, tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert "was written by another version" in ran.err


def test_an_unreadable_file_is_reported(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    ran = run(tool, tmp_path)
    assert ran.code == 1
    assert "cannot be read" in ran.err


def test_the_help_of_the_whole_names_it(tool: Tool) -> None:
    assert "upstreams" in tool.run("--help").out
