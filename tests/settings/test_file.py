from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tollgate.settings.environment import RESERVED, Assignment
from tollgate.settings.file import (
    Origin,
    SettingsError,
    _note,
    _Origin,
    _origin,
    data_folder,
    find,
    load,
    require_networks,
)
from tollgate.settings.mask import effective
from tollgate.settings.model import Settings
from tollgate.settings.schema import Setting, describe

EXAMPLE = Path(__file__).parents[2] / "tollgate.example.toml"
UPSTREAM = "TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAMS__0__"
ONE_UPSTREAM = {f"{UPSTREAM}NAME": "node", f"{UPSTREAM}URL": "http://127.0.0.1:8545"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tollgate.toml"


def problems(path: Path | None, environ: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(path, environ)
    assert str(caught.value).splitlines() == list(caught.value.problems)
    return caught.value.problems


def test_without_file_and_variables_everything_is_default() -> None:
    loaded = load(None, {"HOME": "/root", "TOLLGATE": "no setting"})
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}


def test_the_example_file_loads_and_serves_both_families() -> None:
    loaded = load(EXAMPLE, {})
    assert {name: list(networks) for name, networks in loaded.settings.families.items()} == {
        "starknet": ["mainnet", "sepolia"],
        "eth": ["mainnet", "sepolia"],
    }
    require_networks(loaded.settings)


def test_what_the_example_file_comments_out_is_the_default(file: Path) -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    shown = [line.removeprefix("# ") if " = " in line else line for line in lines]
    differing = ("base_url", "tls_", "trusted_proxies", "deny_methods")
    file.write_text("\n".join(line for line in shown if not line.startswith(differing)), encoding="utf-8")

    everything = load(file, {})

    assert everything.settings.server.metrics_port == Settings().server.metrics_port
    for key, value in effective(Settings()).items():
        assert key == "data_dir" or effective(everything.settings)[key] == value
    assert everything.sources["logging.format"].startswith(str(file))


def test_the_file_wins_over_the_default_and_the_environment_over_the_file(file: Path) -> None:
    file.write_text("[server]\nport = 1\nworkers = 2\n", encoding="utf-8")
    loaded = load(file, {"TOLLGATE_SERVER__WORKERS": "3"})
    assert (loaded.settings.server.port, loaded.settings.server.workers) == (1, 3)
    assert loaded.sources["server.port"] == f"{file}:2"
    assert loaded.sources["server.workers"] == "TOLLGATE_SERVER__WORKERS"
    assert loaded.sources["server.host"] == "default"


def test_sources_name_the_file_as_it_was_given(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('\ndata_dir = "d"\n', encoding="utf-8")
    monkeypatch.chdir(file.parent)
    assert load(Path("tollgate.toml"), {}).sources["data_dir"] == "tollgate.toml:2"


def test_parts_of_an_upstream_keep_their_own_sources(file: Path) -> None:
    file.write_text(
        '[[families.eth.mainnet.upstreams]]\nname = "a"\nurl = "http://a"\n'
        '[[families.eth.mainnet.upstreams]]\nname = "b"\nurl = "http://b"\n',
        encoding="utf-8",
    )
    variable = "TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAMS__1__URL"
    loaded = load(file, {variable: "https://c/KEY"})
    first, second = loaded.settings.families["eth"]["mainnet"].upstreams
    assert (first.url, second.name, second.url) == ("http://a", "b", "https://c/KEY")
    sources = {key.rpartition("upstreams")[2]: source for key, source in loaded.sources.items()}
    assert sources["[1].name"] == f"{file}:5"
    assert sources["[1].url"] == variable
    assert sources["[1].priority"] == "default"


def test_a_variable_can_give_all_upstreams_of_a_network(file: Path) -> None:
    file.write_text('[[families.eth.mainnet.upstreams]]\nname = "a"\nurl = "http://a"\n', encoding="utf-8")
    variable = UPSTREAM.removesuffix("__0__")
    loaded = load(file, {variable: '[{name="x", url="http://x"}, {name="y", url="http://y"}]'})
    assert [upstream.name for upstream in loaded.settings.families["eth"]["mainnet"].upstreams] == ["x", "y"]
    assert loaded.sources["families.eth.mainnet.upstreams[0].name"] == variable


def test_upstreams_in_variables_are_taken_in_the_order_of_their_numbers() -> None:
    environ = {
        f"TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAMS__{number}__{key}": value.format(number)
        for number in range(12)
        for key, value in (("NAME", "n{}"), ("URL", "http://n{}"))
    }
    upstreams = load(None, environ).settings.families["eth"]["mainnet"].upstreams
    assert [upstream.name for upstream in upstreams] == [f"n{number}" for number in range(12)]


def test_an_upstream_beyond_the_last_is_refused_and_leaves_nothing_behind() -> None:
    variable = "TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAMS__1__URL"
    (problem,) = problems(None, {variable: "http://a"})
    assert problem.startswith(f"{variable}: `families.eth.mainnet.upstreams[1].url` has no place")


def test_an_underscore_in_the_variable_of_a_family_means_a_hyphen() -> None:
    variable = "TOLLGATE_FAMILIES__MY_CHAIN__MAINNET__UPSTREAMS"
    families = load(None, {variable: '[{name="x", url="http://x"}]'}).settings.families
    assert list(families) == ["my-chain"]


def sample(row: Setting) -> tuple[str, Any]:
    """A text for the variable of a setting that differs from its default, and the value it means."""
    special: dict[str, tuple[str, Any]] = {
        "server.base_url": ("https://rpc.example.com", "https://rpc.example.com"),
        "server.trusted_proxies": ('["10.0.0.0/8"]', ("10.0.0.0/8",)),
        "limits.limit_slots": ("2_048", 2048),
        "store.url": ("sqlite:///x.db", "sqlite:///x.db"),
        "shared.url": ("valkey://user:secret@10.0.0.5:6379/1", "valkey://user:…@10.0.0.5:6379/1"),
        "secrets.pepper": ("p" * 32, "…"),
        "secrets.previous_pepper": ("q" * 32, "…"),
        "secrets.factor_key": ("f" * 32, "…"),
        "whitelist.resolvers": ('["1.1.1.1"]', ("1.1.1.1",)),
        "accounts.sign_up": ("open", "open"),
        "ledger.segment_bytes": ("65_536", 65_536),
        "billing.plan": ("per_started_million", "per_started_million"),
        "stripe.api_key": ("x", "…"),
        "stripe.api_url": ("http://127.0.0.1:12111", "http://127.0.0.1:12111"),
        "oidc.issuer": ("https://login.example.com", "https://login.example.com"),
        "oidc.client_secret": ("x", "…"),
        "mail.security": ("tls", "tls"),
        "mail.password": ("x", "…"),
        "telemetry.traces_url": ("http://127.0.0.1:4318/v1/traces", "http://127.0.0.1:4318/v1/traces"),
        "traces_headers": ('{X-Key = "k"}', {"X-Key": "…"}),
        "logging.level": ("debug", "debug"),
        "logging.format": ("json", "json"),
        "url": ("https://node.example.com/KEY", "https://node.example.com/…"),
        "ws_url": ("wss://node.example.com/KEY", "wss://node.example.com/…"),
        "headers": ('{X-Key = "k"}', {"X-Key": "…"}),
        "allow_methods": ('["eth_*"]', ("eth_*",)),
        "deny_methods": ('["eth_*"]', ("eth_*",)),
        "open_methods": ('["anvil_*"]', ("anvil_*",)),
        "domain_methods": ('["trace_*"]', ("trace_*",)),
    }
    name = row.key.rpartition(".")[2]
    if row.key in special or name in special:
        return special.get(row.key) or special[name]
    by_type: dict[type, tuple[str, Any]] = {bool: ("true", True), int: ("7", 7), float: ("0.25", 0.25)}
    return by_type.get(type(row.default), ("text", "text"))


@pytest.mark.parametrize("row", describe(), ids=lambda row: row.key)
def test_every_setting_can_be_set_from_the_environment(row: Setting) -> None:
    variable, key = row.variable, row.key
    for placeholder, chosen in (("<family>", "eth"), ("<network>", "mainnet"), ("<n>", "0")):
        variable = variable.replace(placeholder.upper(), chosen.upper())
        key = key.replace(placeholder, chosen)
    text, value = sample(row)
    if row.kind == "array of tables":
        key, text, value = f"{key}[0].name", '[{name = "text", url = "http://a"}]', "text"
        environ = {variable: text}
    else:
        # Settings that are only accepted together.
        pairs = {
            "server.tls": {"TOLLGATE_SERVER__TLS_CERTIFICATE": "c", "TOLLGATE_SERVER__TLS_KEY": "k"},
            "oidc.": {"TOLLGATE_OIDC__CLIENT_ID": "a", "TOLLGATE_OIDC__CLIENT_SECRET": "b"},
            "mail.": {
                "TOLLGATE_MAIL__SENDER": "a@b",
                "TOLLGATE_MAIL__USERNAME": "a",
                "TOLLGATE_MAIL__PASSWORD": "b",
            },
        }
        pair = next((values for start, values in pairs.items() if key.startswith(start)), {})
        environ = {**ONE_UPSTREAM, **pair, variable: text}

    loaded = load(None, environ)

    assert loaded.sources[key] == variable
    assert effective(loaded.settings)[key] == value


def test_the_sources_cover_exactly_the_settings_in_effect() -> None:
    loaded = load(EXAMPLE, {})
    assert list(loaded.sources) == list(effective(loaded.settings))


def test_variables_of_other_programs_are_ignored() -> None:
    environ = dict.fromkeys(RESERVED, "x")
    assert load(None, environ).settings == Settings()


def test_variables_that_kubernetes_sets_for_a_service_are_ignored() -> None:
    environ = {
        "TOLLGATE_PORT": "tcp://10.0.0.1:8402",
        "TOLLGATE_PORT_8402_TCP": "tcp://10.0.0.1:8402",
        "TOLLGATE_PORT_8402_TCP_ADDR": "10.0.0.1",
        "TOLLGATE_SERVICE_HOST": "10.0.0.1",
        "TOLLGATE_SERVICE_PORT": "8402",
        "TOLLGATE_SERVICE_PORT_HTTP": "8402",
    }
    assert load(None, environ).settings == Settings()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TOLLGATE_SERVER__PROT", "TOLLGATE_SERVER__PORT"),
        ("TOLLGATE_SERVER_PORT", "TOLLGATE_SERVER__PORT"),
        ("TOLLGATE_PORT", "TOLLGATE_SERVER__PORT"),
        ("TOLLGATE_Server__Port", "TOLLGATE_SERVER__PORT"),
        ("TOLLGATE_DATADIR", "TOLLGATE_DATA_DIR"),
        (f"{UPSTREAM}LINK", f"{UPSTREAM}URL"),
        ("TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAM", "TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAMS"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_one(name: str, near: str) -> None:
    assert problems(None, {name: "1"}) == (f"{name}: unknown variable; did you mean `{near}`?",)


def test_a_variable_unlike_any_setting_is_refused_with_a_way_to_find_them() -> None:
    (problem,) = problems(None, {"TOLLGATE_QQ": "1"})
    assert problem == "TOLLGATE_QQ: unknown variable; `tollgate config show` lists the settings"


@pytest.mark.parametrize(
    "name",
    [
        "SERVER__PORT__X",
        "FAMILIES____MAINNET__CHAIN_ID",
        *(f"{UPSTREAM[9:-3]}{n}__URL" for n in ("X", "²", 10_000)),
    ],
)
def test_a_variable_that_names_no_setting_is_refused(name: str) -> None:
    assert problems(None, {f"TOLLGATE_{name}": "1"})[0].startswith(f"TOLLGATE_{name}: unknown variable")


@pytest.mark.parametrize("name", ["TOLLGATE_SERVER", "TOLLGATE_FAMILIES__ETH", UPSTREAM[:-2], "TOLLGATE_"])
def test_a_variable_that_names_a_whole_table_is_refused(name: str) -> None:
    assert problems(None, {name: "{}"})[0].startswith(f"{name}: unknown variable")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "SERVER__PORT",
            "many",
            "is not a TOML value: give an integer from 0 to 65535, or unset the variable",
        ),
        ("SERVER__PORT", "1\nother = 2", "is not a TOML value"),
        ("SERVER__PORT", "", "is empty: give an integer"),
        ("SERVER__PORT", '"80"', "must be an integer from 0 to 65535, not a string"),
        ("SERVER__PORT", "70000", "must be an integer from 0 to 65535, not 70000"),
        ("WHITELIST__ALLOW_LOCALHOST", "yes", "give `true` or `false`"),
        ("SERVER__TRUSTED_PROXIES", "10.0.0.1", 'give ["a", "b"]'),
        ("FAMILIES__ETH__MAINNET__UPSTREAMS", "[" * 5000, 'give [{name = "…", url = "…"}]'),
    ],
)
def test_a_bad_value_in_a_variable_is_named_by_the_variable(name: str, text: str, message: str) -> None:
    (problem,) = problems(None, {f"TOLLGATE_{name}": text})
    assert problem.startswith(f"TOLLGATE_{name}: `")
    assert message in problem


def test_problems_of_file_and_environment_come_together_in_order(file: Path) -> None:
    file.write_text(
        "[families.eth.mainnet]\nallow_methods = [\n  'eth_call',\n  'eth call',\n]\n[server]\nprot = 1\n",
        encoding="utf-8",
    )
    found = problems(file, {"TOLLGATE_LIMITS__BODY_BYTES": "0", "TOLLGATE_SERVER__HOTS": "a"})
    slots = [problem.partition(": ")[0] for problem in found]
    assert slots == [
        f"{file}:1", f"{file}:4", f"{file}:7", "TOLLGATE_LIMITS__BODY_BYTES", "TOLLGATE_SERVER__HOTS",
    ]  # fmt: skip


def test_a_variable_over_a_file_of_the_wrong_shape_leaves_the_files_problem(file: Path) -> None:
    file.write_text("families = 3\n", encoding="utf-8")
    found = problems(file, ONE_UPSTREAM)
    assert found[0] == f"{file}:1: `families` must be a table, not an integer"
    file.write_text("server = 3\n", encoding="utf-8")
    found = problems(file, {"TOLLGATE_SERVER__PORT": "1"})
    assert found[1] == "TOLLGATE_SERVER__PORT: `server.port` has no place: what is around it is no table"


def test_a_problem_is_named_by_what_was_written_nearest_to_it() -> None:
    origins: Any = {(): _Origin("file", 0), ("a", "b"): _Origin("file:7", 7)}
    assert _origin(origins, ("a", "b", "c")).label == "file:7"
    assert _origin(origins, ("a", "x", "y")).label == "file"
    _note(origins, Assignment(("a", "x", "y", "z"), 1, "TOLLGATE_A"))
    assert {path: origin.label for path, origin in origins.items()} == {
        (): "file", ("a",): "TOLLGATE_A", ("a", "b"): "file:7", ("a", "x"): "TOLLGATE_A",
        ("a", "x", "y"): "TOLLGATE_A", ("a", "x", "y", "z"): "TOLLGATE_A",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\n[server\n", ":2: is not valid TOML: "),
        (b"a = 1\nb = 'x", ":2: is not valid TOML: "),
        (b"\n[server]\nport = 1\nport = 2\n[logging]\n", ":4: is not valid TOML: Cannot overwrite a value"),
        (b'\n\nhost = "\xff"\n', ":3: is not UTF-8"),
        (b"a = " + b"[" * 9000, ": "),
        (b"a = " + b"9" * 5000, ": is not valid TOML: "),
    ],
)
def test_a_file_that_is_no_toml_is_named_with_its_line(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    (problem,) = problems(file, {})
    assert problem.startswith(f"{file}{message}")


def test_a_broken_file_does_not_hide_the_problems_of_variables(file: Path) -> None:
    file.write_text("[", encoding="utf-8")
    assert len(problems(file, {"TOLLGATE_SERVER__PROT": "1"})) == 2


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 1\r\n")
    assert load(file, {}).sources["server.port"] == f"{file}:2"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path, file: Path) -> None:
    assert problems(file, {})[0].startswith(f"{file}: there is no such file")
    assert problems(tmp_path, {})[0].startswith(f"{tmp_path}: is a folder")


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(file: Path) -> None:
    file.symlink_to(file)
    (problem,) = problems(file, {})
    assert problem == f"{file}: cannot be read: {os.strerror(errno.ELOOP)}"


def test_relative_paths_start_at_the_folder_of_the_file_or_else_the_current_one(file: Path) -> None:
    file.write_text(
        'data_dir = "data"\n[server]\ntls_certificate = "/etc/cert.pem"\ntls_key = "x"\n', encoding="utf-8"
    )
    loaded = load(file, {"TOLLGATE_SERVER__TLS_KEY": "key.pem"})
    assert loaded.settings.data_dir == str(file.parent / "data")
    assert loaded.settings.server.tls_certificate == "/etc/cert.pem"
    assert loaded.settings.server.tls_key == "key.pem"


def test_the_file_is_the_named_one_else_of_the_variable_else_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find(None, {}) is None
    Path("tollgate.toml").touch()
    assert find(None, {}) == Path("tollgate.toml")
    assert find(None, {"TOLLGATE_CONFIG": ""}) == Path("tollgate.toml")
    assert find(None, {"TOLLGATE_CONFIG": "b.toml"}) == Path("b.toml")
    assert find("a.toml", {"TOLLGATE_CONFIG": "b.toml"}) == Path("a.toml")


def test_settings_without_networks_cannot_be_served() -> None:
    with pytest.raises(SettingsError, match=r"no networks are set: run `tollgate init`, or add \[\[families"):
        require_networks(Settings())


def test_secrets_stay_out_of_the_repr_of_loaded_settings() -> None:
    environ = {
        **ONE_UPSTREAM,
        f"{UPSTREAM}URL": "https://node/hunter2",
        f"{UPSTREAM}HEADERS": '{X-Key = "hunter2"}',
        "TOLLGATE_SECRETS__PEPPER": "hunter2" * 6,
        "TOLLGATE_STORE__URL": "postgresql://u:hunter2@h/d",
    }
    loaded = load(None, environ)
    assert "hunter2" not in repr(loaded)
    assert "name='node', url=…, ws_url='', headers=…, priority=0" in repr(loaded), "and nothing else is hidden"
    assert "pepper=…, previous_pepper=''" in repr(loaded)
    assert b"hunter2" in msgspec.json.encode(loaded.settings)


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ('data_dir = "data"', {}),
        ('data_dir = "/var/lib/tollgate"', {}),
        ("", {}),
        ('data_dir = "data"', {"TOLLGATE_DATA_DIR": "elsewhere"}),
        ("", {"TOLLGATE_DATA_DIR": "/elsewhere"}),
        ('data_dir = "data"', {"TOLLGATE_CACHE__BYTES": "7"}),
    ],
)
def test_the_data_folder_read_alone_equals_that_of_all_settings(
    file: Path, text: str, environ: dict[str, str]
) -> None:
    file.write_text(text)
    assert data_folder(file, environ) == Path(load(file, environ).settings.data_dir)
    assert data_folder(None, environ) == Path(load(None, environ).settings.data_dir)


def test_the_data_folder_is_found_whatever_else_is_wrong(file: Path) -> None:
    file.write_text('data_dir = "data"\nnonsense = 1\n[server]\nport = "x"\n[families.eth.mainnet]\n')
    assert data_folder(file, {"TOLLGATE_NONSENSE": "x", "TOLLGATE_SERVER__PORT": "x"}) == file.parent / "data"
    file.write_text("data_dir = 3")
    assert data_folder(file, {}) == Path("tollgate-data")


def test_an_origin_is_reread_each_time_and_requires_networks(file: Path) -> None:
    origin = Origin(file, ONE_UPSTREAM)
    for calls in (7, 8):
        file.write_text(f"[limits]\nbatch_calls = {calls}\n")
        assert origin.load().limits.batch_calls == calls
    with pytest.raises(SettingsError, match="no networks are set"):
        Origin(file, {}).load()
