"""What may change in place, what needs a restart, and how it is reported: never with a secret."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tollgate.settings.changes import _MAX_SHOWN, SettingsChanges, compare
from tollgate.settings.model import Settings
from tollgate.settings.schema import describe

KEY = "very-secret"
A: dict[str, Any] = {"name": "a", "url": f"https://node.example/{KEY}"}
B: dict[str, Any] = {"name": "b", "url": "https://other.example/"}
BASE: dict[str, Any] = {"families": {"eth": {"mainnet": {"upstreams": [A]}}}}


def settings(**tables: Any) -> Settings:
    return msgspec.convert({**BASE, **tables}, Settings)


def mainnet(*upstreams: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"eth": {"mainnet": {"upstreams": list(upstreams), **more}}}


def changes(wanted: Settings, running: Settings | None = None) -> SettingsChanges:
    return compare(running or settings(), wanted)


def test_same_settings_are_no_change() -> None:
    assert changes(settings()) == SettingsChanges(settings(), (), ())


@pytest.mark.parametrize(
    ("table", "key", "value", "line"),
    [
        ("limits", "batch_calls", 50, "limits.batch_calls: 100 -> 50"),
        ("limits", "request_seconds", 7.5, "limits.request_seconds: 30.0 -> 7.5"),
        ("cache", "bytes", 0, "cache.bytes: 33554432 -> 0"),
        ("health", "probe_seconds", 2.0, "health.probe_seconds: 0.5 -> 2.0"),
        ("websocket", "connections", 9, "websocket.connections: 5000 -> 9"),
        ("logging", "level", "debug", 'logging.level: "info" -> "debug"'),
    ],
)
def test_changes_in_place(table: str, key: str, value: Any, line: str) -> None:
    wanted = settings(**{table: {key: value}})
    assert changes(wanted) == SettingsChanges(wanted, (line,), ())


@pytest.mark.parametrize(("letters", "shown"), [(50, True), (51, False)])
def test_values_are_shown_as_they_are_written_unless_they_are_long(letters: int, *, shown: bool) -> None:
    words = f'[] -> ["{"é" * letters}"]'
    assert (len(words) <= _MAX_SHOWN) is shown
    found = changes(settings(families=mainnet(A, deny_methods=["é" * letters])))
    assert found.changed == (f"families.eth.mainnet.deny_methods: {words if shown else 'changed'}",)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("server", "port", 9000),
        ("server", "trusted_proxies", ["10.0.0.0/8"]),
        ("limits", "limit_slots", 2048),
        ("secrets", "pepper", "0" * 32),
        ("secrets", "previous_pepper", "0" * 32),
        ("store", "url", "sqlite:///elsewhere.db"),
        ("logging", "format", "text"),
        ("ledger", "log_days", 3),
        ("accounts", "sign_up", "open"),
    ],
)
def test_needs_a_restart_and_is_left_as_it_was(table: str, key: str, value: Any) -> None:
    assert changes(settings(**{table: {key: value}})) == SettingsChanges(settings(), (), (f"{table}.{key}",))


def test_data_folder_needs_a_restart() -> None:
    assert changes(settings(data_dir="elsewhere")) == SettingsChanges(settings(), (), ("data_dir",))


def test_both_kinds_together() -> None:
    wanted = settings(server={"port": 9000}, limits={"batch_calls": 50, "limit_slots": 2048})
    found = changes(wanted)
    assert found.settings == settings(limits={"batch_calls": 50})
    assert found.changed == ("limits.batch_calls: 100 -> 50",)
    assert found.restart_needed == ("server.port", "limits.limit_slots")


@pytest.mark.parametrize(
    ("families", "lines"),
    [
        (mainnet(A, B), ["families.eth.mainnet.upstreams: + b"]),
        (mainnet(B), ["families.eth.mainnet.upstreams: + b, - a"]),
        (mainnet(A, hedge=False), ["families.eth.mainnet.hedge: true -> false"]),
        (mainnet(A, deny_methods=["debug_*"]), ['families.eth.mainnet.deny_methods: [] -> ["debug_*"]']),
        (mainnet(A, deny_methods=["debug_*"] * 20), ["families.eth.mainnet.deny_methods: changed"]),
        (mainnet({**A, "weight": 3}), ["families.eth.mainnet.upstreams.a.weight: 1 -> 3"]),
        (mainnet({**A, "url": f"https://{KEY}.example"}), ["families.eth.mainnet.upstreams.a.url: changed"]),
        (mainnet({**A, "ws_url": f"wss://{KEY}"}), ["families.eth.mainnet.upstreams.a.ws_url: changed"]),
        (mainnet({**A, "headers": {KEY: KEY}}), ["families.eth.mainnet.upstreams.a.headers: changed"]),
        (
            mainnet(B, {**A, "archive": False}),
            ["families.eth.mainnet.upstreams: + b", "families.eth.mainnet.upstreams.a.archive: true -> false"],
        ),
        (
            {**mainnet(A), "starknet": {"sepolia": {"upstreams": [B, A]}}},
            ["families.starknet.sepolia: added, with b, a"],
        ),
        (
            {"starknet": {"mainnet": {"upstreams": [B]}}},
            ["families.starknet.mainnet: added, with b", "families.eth.mainnet: removed"],
        ),
    ],
)
def test_networks_and_upstreams(families: dict[str, Any], lines: list[str]) -> None:
    wanted = settings(families=families)
    found = changes(wanted)
    assert found == SettingsChanges(wanted, tuple(lines), ())
    assert KEY not in repr(found.changed)


def test_another_order_is_reported() -> None:
    running, wanted = settings(families=mainnet(A, B)), settings(families=mainnet(B, A))
    assert changes(wanted, running).changed == ("families.eth.mainnet.upstreams: another order",)


def test_every_secret_is_one_that_is_never_quoted() -> None:
    shown = repr(
        changes(
            settings(
                secrets={"pepper": KEY * 4, "previous_pepper": KEY * 4, "factor_key": KEY * 4},
                store={"url": f"sqlite:///{KEY}"},
                shared={"url": f"valkey://:{KEY}@10.0.0.5"},
                stripe={"api_key": KEY},
                oidc={"client_secret": KEY},
                mail={"password": KEY},
                telemetry={"traces_headers": {"X": KEY}},
                families=mainnet(
                    {"name": "a", "url": f"http://{KEY}", "ws_url": f"ws://{KEY}", "headers": {"X": KEY}}
                ),
            )
        )
    )
    assert KEY not in shown
    # A new secret must be added above.
    assert sum(row.secret for row in describe()) == 12


def test_every_setting_either_changes_or_needs_a_restart() -> None:
    """A new table is not forgotten in silence: whatever differs is in one of the two lists."""
    running = msgspec.to_builtins(settings())
    for row in describe():
        if row.key.startswith("families") or row.required:
            continue
        *parents, name = row.key.split(".")
        value = _another(row.default)
        tree: dict[str, Any] = {name: value}
        for parent in reversed(parents):
            tree = {parent: tree}
        wanted = msgspec.convert(_merged(running, tree), Settings, strict=False)
        found = changes(wanted)
        shown = [line.partition(":")[0] for line in found.changed] + list(found.restart_needed)
        assert shown == [row.key]


def _another(default: Any) -> Any:
    match default:
        case bool():
            return not default
        case int() | float():
            return default * 0.9 if isinstance(default, float) else default + 1
        case "invited":
            return "open"
        case "per_request":
            return "per_started_million"
        case "starttls":
            return "tls"
        case "info":
            return "error"
        case "auto":
            return "json"
        case str():
            return default + "x" if default.startswith("http") or default else "http://x"
        case dict():
            return {"X-Key": "k"}
        case _:
            return ["10.0.0.1"]


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _merged(below[key], value) if isinstance(value, dict) and key in below else value
    return merged
