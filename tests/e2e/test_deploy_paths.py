"""The ways to production of docs/deploy.md, command by command, under the users that they name.

In a changed root: `systemctl` and `docker` are not run, but what they would start is, with the variables, users
and folders of the unit, the Dockerfile and the Compose file.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]

from parts.need import ROOT
from parts.ports import accepts, free_ports
from parts.processes import running
from parts.root import ChangedRoot, as_user, clean

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

TOLLGATE = "/opt/tollgate/bin/tollgate"
EMAIL = "ada@example.com"


def documented(section: str) -> list[list[str]]:
    """The commands of the first block of a section of docs/deploy.md."""
    text = (ROOT / "docs" / "deploy.md").read_text().partition(f"\n## {section}\n")[2]
    block = text.partition("```\n")[2].partition("```")[0]
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines() if line]


def here(argv: list[str]) -> list[str]:
    """A documented command with the files of this repository, and without the network."""
    found = []
    for word in argv:
        if word.startswith("deploy/"):
            found += [str(each) for each in sorted(ROOT.glob(word))] or [word]
        else:
            found.append(word)
    return [*found, "--offline"] if "init" in argv else found


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (ROOT / "deploy" / "systemd" / "tollgate.service").read_text().splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def ports() -> dict[str, str]:
    port, metrics = free_ports(2)
    return {
        "TOLLGATE_SERVER__PORT": str(port),
        "TOLLGATE_SERVER__METRICS_PORT": str(metrics),
        "TOLLGATE_SERVER__WORKERS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def operators(listed: str) -> dict[str, Any]:
    return {each["email"]: each["operator"] for each in json.loads(listed)["items"]}


def test_systemd_as_documented_serves_as_its_own_user_with_the_account_of_init(tmp_path: Path) -> None:
    root = ChangedRoot(tmp_path / "root")
    *commands, start = documented("systemd")
    assert start[:3] == ["systemctl", "enable", "--now"]
    for command in commands:
        root.run(here(command))
    (entry,) = [line for line in (root.folder / "etc/passwd").read_text().splitlines() if "Tollgate" in line]
    user, group = (int(each) for each in entry.split(":")[2:4])
    assert entry.split(":")[0] == unit()["User"][0]
    assert user != 0
    for path in ("etc/tollgate/tollgate.toml", "var/lib/tollgate/control.db", "var/lib/tollgate/pepper"):
        status = (root.folder / path).stat()
        assert (status.st_uid, status.st_mode & 0o077) == (user, 0), path
    # As systemd starts it: another uid, the variables of the unit, secrets as credentials.
    variables = dict(each.split("=", 1) for each in unit()["Environment"]) | ports()
    (check,), (serve,) = unit()["ExecStartPre"], unit()["ExecStart"]
    root.run(as_user(user, group, shlex.split(check), variables))
    port = int(variables["TOLLGATE_SERVER__PORT"])
    argv = root.command(as_user(user, group, shlex.split(serve), variables))
    with running(argv, folder=tmp_path / "output", ready=lambda _: accepts(port), env=clean()):
        assert operators(root.run(["tollgate-as-service", "admin", "accounts", "--json"])) == {EMAIL: True}


def test_image_as_documented_serves_as_its_own_user_with_the_account_of_init(tmp_path: Path) -> None:
    """The steps of the Dockerfile's last stage, then `docker compose run` and `up` with variables and volumes."""
    dockerfile = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text()).rpartition("\nFROM ")[2]
    root = ChangedRoot(tmp_path / "root")
    (make_user,) = re.findall(r"^RUN (.*)$", dockerfile, re.MULTILINE)
    root.run(["sh", "-ec", make_user])
    (line,) = re.findall(r"^ENV (PATH=.*)$", dockerfile, re.MULTILINE)
    (owner,) = re.findall(r"^USER (.*)$", dockerfile, re.MULTILINE)
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)
    user, group = map(int, owner.split(":"))
    variables = dict(pair.split("=", 1) for pair in line.replace("$PATH", "/usr/bin:/bin").split()) | ports()
    service = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["tollgate"]
    variables |= {name: re.sub(r"\${\w+:-}", "", value) for name, value in service["environment"].items()}
    # The folder beside the Compose file is made as documented, and bound where the Compose file says.
    build, make_folder, compose_init, compose_up = documented("Docker")
    assert (build[:2], compose_up[-2:]) == (["docker", "build"], ["up", "-d"])
    settings = tmp_path / "settings"
    make = [str(settings) if word == "deploy/settings" else word for word in make_folder]
    root.run(make, binds={tmp_path: str(tmp_path)})
    assert service["volumes"][0] == "./settings:/etc/tollgate"
    binds = {settings: "/etc/tollgate"}
    init = compose_init[compose_init.index("tollgate") + 1 :]
    root.run(as_user(user, group, [*json.loads(entry), *here(init)], variables), binds=binds)
    status = (settings / "tollgate.toml").stat()
    assert (status.st_uid, status.st_mode & 0o077) == (user, 0)
    port = int(variables["TOLLGATE_SERVER__PORT"])
    serve = as_user(user, group, [*json.loads(entry), "serve"], variables)
    with running(
        root.command(serve, binds=binds), folder=tmp_path / "output", ready=lambda _: accepts(port), env=clean()
    ):
        # As `docker compose exec` and `kubectl exec`.
        create = [
            "tollgate",
            "admin",
            "create-account",
            "eve@example.com",
            "--team",
            "eve",
            "--operator",
            "--generate",
        ]
        root.run(as_user(user, group, create, variables), binds=binds)
        listed = root.run(
            as_user(user, group, ["tollgate", "admin", "accounts", "--json"], variables), binds=binds
        )
        assert operators(listed) == {EMAIL: True, "eve@example.com": True}


def test_notes_of_the_chart_create_the_account_as_documented() -> None:
    notes = (ROOT / "deploy" / "helm" / "tollgate" / "templates" / "NOTES.txt").read_text()
    (command,) = documented("Kubernetes")
    words = command[command.index("--") + 1 :]
    assert shlex.join(words) in notes
    assert words[:3] == ["tollgate", "admin", "create-account"]
    assert "--operator" in words
