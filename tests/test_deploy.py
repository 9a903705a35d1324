"""The files of deploy/ and the Dockerfile, checked as far as they can be without running them in their places.

Docker, Kubernetes and Caddy are not run here: rules as hadolint has them, the structure of YAML, and that every
variable is a setting. systemd and nginx check their own files; tests/e2e/test_setup.py runs the image's command.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from parts.certs import make_certificate
from tollgate.settings.environment import RESERVED
from tollgate.settings.file import load
from tollgate.settings.schema import describe

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
VARIABLE = re.compile(r"\bTOLLGATE_[A-Z0-9_]+\b")


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def of(word: str) -> list[str]:
    return [rest for each, rest in instructions() if each == word]


def test_the_image_is_pinned_runs_as_nobody_special_and_shows_how_it_is() -> None:
    assert of("FROM") == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    # An argument, so that it can be given by digest.
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+-slim(@sha256:[0-9a-f]{64})?", of("ARG")[0])
    assert not any("METRICS" in rest for rest in of("ENV")), "metrics are on loopback"
    assert of("USER") == ["10001:10001"]
    assert instructions().index(("USER", "10001:10001")) > max(
        number for number, (word, _) in enumerate(instructions()) if word == "RUN"
    )
    assert not of("ADD")
    assert [rest.startswith("[") for rest in of("ENTRYPOINT") + of("CMD")] == [True, True]
    assert "/healthz" in of("HEALTHCHECK")[0]
    assert of("STOPSIGNAL") == ["SIGTERM"]
    installs = re.findall(r"pip install ((?:--\S+ )+)", " ".join(of("RUN")))
    assert set(installs) == {"--require-hashes --no-deps ", "--no-deps "}
    assert not re.search(r"sudo|curl|wget|apt-get upgrade|chmod 777", " ".join(of("RUN")))


def test_what_the_image_copies_is_there_and_reaches_the_builder() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for rest in of("COPY"):
        if not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source in allowed, f"{source} is ignored by .dockerignore"


def test_every_variable_in_a_file_is_a_setting() -> None:
    known = {re.sub(r"__<N>__", "__0__", row.variable) for row in describe()} | RESERVED
    patterns = [re.compile(re.sub(r"<[A-Z]+>", "[A-Z0-9_]+?", name)) for name in known]
    files = [ROOT / "Dockerfile", *(path for path in DEPLOY.rglob("*") if path.is_file())]
    for file in files:
        for name in VARIABLE.findall(file.read_text()):
            assert name == "TOLLGATE_" or any(each.fullmatch(name) for each in patterns), f"{name} in {file.name}"


def test_the_settings_of_every_file_are_those_that_tollgate_takes(tmp_path: Path) -> None:
    """As a whole, by the settings' own reader: names, kinds and bounds of values."""
    (tmp_path / "tollgate.toml").write_text(
        yaml.safe_load((DEPLOY / "helm" / "tollgate" / "values.yaml").read_text())["settings"]
    )
    (image,) = (rest for rest in of("ENV") if rest.startswith("PATH="))
    units = [(DEPLOY / "systemd" / name).read_text() for name in ("tollgate.service", "tollgate-backup.service")]
    environments = {
        "Dockerfile": dict(pair.split("=", 1) for pair in image.split()),
        "compose": dict(compose()["services"]["tollgate"]["environment"]),
        "engines": {
            name: _expanded(value) for name, value in compose()["services"]["tollgate"]["environment"].items()
        },
        **{
            f"unit {at}": dict(re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE))
            for at, unit in enumerate(units)
        },
    }
    loaded = {
        name: load(
            tmp_path / "tollgate.toml", {key: re.sub(r"\${\w+:-}", "", value) for key, value in each.items()}
        )
        for name, each in environments.items()
    }
    assert all(each.settings.families["eth"]["mainnet"].upstreams for each in loaded.values())
    assert (loaded["compose"].settings.store.url, loaded["compose"].settings.shared.url) == ("", "")
    assert loaded["engines"].settings.store.url.startswith("postgresql://")
    assert loaded["engines"].settings.shared.url == "valkey://:secret@valkey:6379/0"
    assert loaded["Dockerfile"].settings.server.host == "0.0.0.0"


def _expanded(value: str) -> str:
    """A value of the Compose file with the variables that its head proposes."""
    head = (DEPLOY / "compose.yaml").read_text().partition("\nname:")[0]
    proposed = dict(re.findall(r"^#   ([A-Z_]+)=(.*)$", head, re.MULTILINE))
    return re.sub(r"\${(\w+):-}", lambda found: proposed[found[1]].replace("…", "secret"), value)


def test_the_image_has_the_clients_of_the_engines() -> None:
    """What the Compose profile starts can be used; all else is pinned as for a plain installation."""
    pins = {
        name: set(re.findall(r"^([a-z0-9-]+==\S+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))
        for name in ("runtime.txt", "image.txt")
    }
    assert "requirements/image.txt" in " ".join(of("RUN"))
    assert pins["runtime.txt"] <= pins["image.txt"]
    more = {pin.partition("==")[0] for pin in pins["image.txt"] - pins["runtime.txt"]}
    assert more == {"psycopg", "psycopg-binary", "redis", "async-timeout", "tzdata"}


def test_no_lock_of_the_service_has_libraries_for_tests() -> None:
    for name in ("runtime.txt", "image.txt"):
        pins = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / name).read_text(), re.MULTILINE)
        assert not {"faker", "polyfactory", "pytest", "hypothesis", "factory-boy"} & set(pins)


def test_service_starts_without_libraries_for_tests() -> None:
    """Litestar requires them, and imports them only for what is not used here."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['faker', 'polyfactory']))"
    program = f"{blocked}; import tollgate.cli.main, tollgate.processes.control, tollgate.control.api.openapi"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_compose_has_the_engines_as_a_profile_and_no_secret() -> None:
    services = compose()["services"]
    assert services["tollgate"]["read_only"] is True
    assert services["tollgate"]["cap_drop"] == ["ALL"]
    assert "profiles" not in services["tollgate"]
    assert {name: each["profiles"] for name, each in services.items() if "profiles" in each} == {
        "postgres": ["engines"],
        "valkey": ["engines"],
    }
    assert all(str(port).startswith("127.0.0.1:") for port in services["tollgate"]["ports"])
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == "${POSTGRES_PASSWORD:-}"
    assert services["valkey"]["environment"]["VALKEY_PASSWORD"] == "${VALKEY_PASSWORD:-}"
    assert "requirepass" in services["valkey"]["command"][-1]
    assert "expose" not in services["tollgate"], "metrics are on loopback"
    assert all(":" in each["image"] for name, each in services.items() if name != "tollgate")
    assert set(compose()["volumes"]) == {"data", "postgres"}


def test_the_chart_names_only_values_that_it_has() -> None:
    chart = DEPLOY / "helm" / "tollgate"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    text = "".join(path.read_text() for path in (chart / "templates").iterdir())
    for path in set(re.findall(r"\.Values\.([A-Za-z.]+)", text)):
        place = values
        for part in path.split("."):
            assert part in place, path
            place = place[part]
    assert text.count("{{") == text.count("}}")
    opened = len(re.findall(r"{{-? (?:if|with|define|range) ", text))
    assert opened == len(re.findall(r"{{-? end", text))
    assert "readOnlyRootFilesystem: true" in text
    assert "runAsNonRoot: true" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    tool = shutil.which("true")
    units = []
    for unit in (each for each in (DEPLOY / "systemd").iterdir() if each.suffix in (".service", ".timer")):
        text = unit.read_text().replace("/opt/tollgate/bin/tollgate", str(tool))
        (tmp_path / unit.name).write_text(text)
        units.append(str(tmp_path / unit.name))
    ran = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not here")
def test_nginx_accepts_its_example(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    text = (DEPLOY / "nginx.conf").read_text()
    text = re.sub(r"/etc/letsencrypt\S+fullchain.pem", str(made.certificate), text)
    text = re.sub(r"/etc/letsencrypt\S+privkey.pem", str(made.key), text)
    whole = f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{text}\n}}\n"
    (tmp_path / "nginx.conf").write_text(whole)
    command = ["nginx", "-t", "-q", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_caddys_example_has_balanced_braces_and_names_no_health_path_that_is_not_there() -> None:
    text = (DEPLOY / "Caddyfile").read_text()
    assert text.count("{") == text.count("}")
    assert "health_uri /readyz" in text
