"""`tollgate init` and `config check --online`: upstreams tried, the file, the account, the next commands."""

from __future__ import annotations

import json
import stat
import tomllib
from typing import TYPE_CHECKING

import pytest
from tests.cli.node import BAD_PARAMS, NO_SUCH_METHOD, node

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Tool

PRUNED = {"error": {"code": -32000, "message": "missing trie node 0xabc (path )"}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_tries_the_upstream_writes_the_file_and_names_the_next_commands(tool: Tool, folder: Path) -> None:
    with node(eth_getBalance=PRUNED, trace_block=NO_SUCH_METHOD) as url:
        ran = tool.run(
            "init", "--upstream", f"eth/mainnet={url}/v2/SECRET", "--email", "ada@example.com", "--team", "acme",
            "--generate", "--set", "server.port=9000", "--set", "data_dir=data",
        )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "SECRET" not in ran.out + ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[1][:5] == ["eth/mainnet", "node-1", "1", "1000", "no"]
    assert lines[1][-1] == "trace_block"
    assert ran.err.endswith(
        "Wrote tollgate.toml. Next:\n\n  tollgate serve\n  tollgate auth login --url http://127.0.0.1:9000\n"
        "  tollgate rpc tokens create first --team acme\n"
    )
    file = folder / "tollgate.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = tomllib.loads(file.read_text())
    assert written["server"] == {"port": 9000}
    assert written["families"]["eth"]["mainnet"] == {
        "chain_id": "0x1",
        "strict": True,
        "upstreams": [{"name": "node-1", "url": f"{url}/v2/SECRET", "archive": False}],
    }
    assert (folder / "data" / "control.db").exists()
    accounts = tool.run("admin", "accounts", "--json")
    assert [(each["email"], each["operator"]) for each in accounts.json["items"]] == [("ada@example.com", True)]


def test_init_writes_the_file_of_the_environment_and_the_account_into_its_data_folder(
    tool: Tool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLLGATE_CONFIG", str(folder / "etc" / "tollgate.toml"))
    monkeypatch.setenv("TOLLGATE_DATA_DIR", str(folder / "var"))
    ran = tool.run(
        "init", "--upstream", "eth/mainnet=http://127.0.0.1:1", "--offline", "--email", "a@example.com",
        "--generate", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert (ran.json["config"], ran.json["data_dir"]) == (f"{folder}/etc/tollgate.toml", f"{folder}/var")
    assert (folder / "var" / "control.db").exists()
    assert not (folder / "tollgate.toml").exists()


def test_init_for_scripts_prints_one_object_with_what_it_made(tool: Tool) -> None:
    with node() as url:
        ran = tool.run(
            "init", "--upstream", f"eth/mainnet={url}", "--email", "a@example.com", "--team", "acme", "--generate",
            "--personal-token", "--json",
        )  # fmt: skip
    made = json.loads(ran.out)
    assert (made["config"], made["url"], made["team"]) == ("tollgate.toml", "http://127.0.0.1:8402", "acme")
    assert made["personal_token"].startswith("tgp_")
    assert len(made["password"]) >= 16


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "Which upstreams? Give --upstream FAMILY/NETWORK=URL"),
        (("--upstream", "mainnet=http://x"), 2, "--upstream must be FAMILY/NETWORK=URL"),
        (("--upstream", "eth/mainnet=ftp://SECRET"), 2, "must start with http:// or https://, or be one of alchemy://KEY"),
        (("--upstream", "eth/mainnet=alchemy://YOUR-KEY"), 2, "still holds a placeholder"),
        (("--upstream", "eth/nowhere=alchemy://SECRET"), 2, "not known for eth/nowhere"),
        (("--upstream", "btc/mainnet=http://x"), 1, "is of the family btc, which cannot be probed: eth and"),
        (("--upstream", "eth/mainnet=http://127.0.0.1:1/SECRET"), 1, "the upstream node-1 refuses connections."),
        (("--upstream", "eth/mainnet=http://x", "--offline", "--set", "port"), 2, "--set must be KEY=VALUE"),
        (("--upstream", "eth/mainnet=http://x", "--offline", "--set", "server.port=high"), 1, "written: `server"),
        (("--upstream", "eth/mainnet=http://x", "--offline", "--email", "ada"), 1, "@"),
    ],
)  # fmt: skip
def test_init_writes_nothing_after_a_mistake(
    tool: Tool, folder: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    ran = tool.run("init", *arguments)
    assert (ran.code, message in ran.err) == (code, True), ran.err
    assert "SECRET" not in ran.out + ran.err
    assert not (folder / "tollgate.toml").exists()


def test_init_leaves_an_existing_file_unchanged(tool: Tool, folder: Path) -> None:
    (folder / "tollgate.toml").write_text("mine")
    ran = tool.run("init", "--upstream", "eth/mainnet=publicnode://", "--offline")
    assert (ran.code, "overwrite it with --force" in ran.err) == (1, True)
    assert (folder / "tollgate.toml").read_text() == "mine"
    assert tool.run("init", "--upstream", "eth/mainnet=publicnode://", "--offline", "--force").code == 0
    assert 'url = "publicnode://"' in (folder / "tollgate.toml").read_text()


def test_init_makes_networks_strict_where_the_family_has_a_catalogue(tool: Tool, folder: Path) -> None:
    upstreams = [f"{path}=http://x" for path in ("starknet/sepolia", "eth/mainnet", "btc/mainnet")]
    given = [part for each in upstreams for part in ("--upstream", each)]
    assert tool.run("init", *given, "--offline").code == 0
    assert tool.run("config", "check").code == 0
    families = tomllib.loads((folder / "tollgate.toml").read_text())["families"]
    assert families["starknet"]["sepolia"]["strict"] is True
    assert families["eth"]["mainnet"]["strict"] is True
    assert "strict" not in families["btc"]["mainnet"], "all its methods are unknown"


def test_wrong_settings_leave_an_existing_file_unchanged(tool: Tool, folder: Path) -> None:
    (folder / "tollgate.toml").write_text("mine")
    given = ("--upstream", "eth/mainnet=publicnode://", "--set", "server.port=99999999")
    ran = tool.run("init", *given, "--offline", "--force")
    assert (ran.code, "server.port" in ran.err) == (1, True)
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [("tollgate.toml", "mine")]


def test_upstreams_of_one_network_must_be_of_one_chain(tool: Tool, folder: Path) -> None:
    with node() as one, node(eth_chainId={"result": "0x5"}) as two:
        ran = tool.run("init", "--upstream", f"eth/mainnet={one}", "--upstream", f"eth/mainnet={two}")
    assert (ran.code, "the upstream node-2 reports chain id 0x5, not 0x1." in ran.err) == (1, True)
    assert not (folder / "tollgate.toml").exists()


def test_config_check_online_shows_what_exactly_failed(tool: Tool, folder: Path) -> None:
    with node() as good, node(status=401) as locked, node(eth_chainId=BAD_PARAMS) as odd:
        upstreams = "".join(
            f'[[families.eth.mainnet.upstreams]]\nname = "{name}"\nurl = "{url}"\n'
            for name, url in (
                ("good", good),
                ("locked", locked),
                ("odd", odd),
                ("gone", "http://no.invalid/SECRET"),
                ("plain", good.replace("http://", "https://")),
            )
        )
        (folder / "tollgate.toml").write_text(f"[server]\nport = 0\nmetrics_port = 0\n{upstreams}")
        assert tool.run("config", "check").code == 0
        ran = tool.run("config", "check", "--online")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "eth/mainnet: the upstream locked answers with HTTP 401: check its key.",
        "eth/mainnet: the upstream odd answers eth_chainId with error -32602.",
        "eth/mainnet: the upstream gone has a name that is not found: check its address, or the DNS server.",
        (
            "eth/mainnet: the upstream plain fails in the TLS handshake (wrong version number): "
            "try http:// instead of https://."
        ),
    ]
    assert "SECRET" not in ran.out


def test_on_a_terminal_init_prompts_for_what_is_missing_and_shows_what_is_wrong(tool: Tool, folder: Path) -> None:
    with node() as url, tool.terminal("init", env={"NO_COLOR": "1"}) as terminal:
        for prompt, typed in (
            ("Network (empty: done) [eth/mainnet]: ", "mainnet"),
            ("A network is written FAMILY/NETWORK, such as eth/mainnet", None),
            ("Network (empty: done) [eth/mainnet]: ", ""),
            ("Address for eth/mainnet: ", "ftp://node"),
            ("No: the address must start with http:// or https://, or be one of alchemy://KEY", None),
            ("Network (empty: done) [eth/mainnet]: ", "eth/mainnet"),
            ("Address for eth/mainnet: ", f"{url}/v2/SECRET"),
            ("Network (empty: done): ", ""),
            ("Trying 1 upstream …", None),
            ("E-mail address of the first account (empty: none): ", "ada@example.com"),
            ("Its team [main]: ", "acme"),
            ("Password (", "a password of good length"),
            ("Repeat for confirmation: ", "a password of good length"),
        ):
            terminal.expect(prompt)
            if typed is not None:
                terminal.type(f"{typed}\n")
        terminal.expect("Wrote tollgate.toml. Next:")
        assert terminal.end() == 0
    assert "a password of good length" not in terminal.seen
    written = tomllib.loads((folder / "tollgate.toml").read_text())
    assert written["families"]["eth"]["mainnet"]["upstreams"][0]["url"] == f"{url}/v2/SECRET"
    accounts = tool.run("admin", "accounts", "--json")
    assert [each["email"] for each in accounts.json["items"]] == ["ada@example.com"]
