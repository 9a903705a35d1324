"""The pepper: made once, kept from others, and never silently another one."""

from pathlib import Path

import pytest
from sqlalchemy.engine import URL
from tests.store.migrated import make_control

from tollgate.errors import StartError
from tollgate.processes.bootstrap import (
    PEPPER,
    PREVIOUS_PEPPER,
    load_factor_key,
    load_peppers,
    prepare,
    write_pepper,
)
from tollgate.settings.model import SecretSettings, Settings
from tollgate.store import sqlite

CONFIGURED = "a configured pepper of good length"


@pytest.fixture
def url(tmp_path: Path) -> URL:
    address = sqlite.store_url("", tmp_path)
    make_control(tmp_path)
    return address


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / PEPPER


def load_pepper(configured: str, data_dir: Path, url: URL, previous: str = "") -> bytes:
    secrets = SecretSettings(pepper=configured, previous_pepper=previous)
    return load_peppers(Settings(secrets=secrets), data_dir, url)[0]


def test_first_start_makes_a_pepper_that_only_its_owner_can_read(tmp_path: Path, url: URL, path: Path) -> None:
    made = load_pepper("", tmp_path, url)
    assert len(made) >= 32
    assert path.read_bytes().strip() == made
    assert path.stat().st_mode & 0o777 == 0o600


def test_second_start_finds_the_same_pepper(tmp_path: Path, url: URL) -> None:
    assert load_pepper("", tmp_path, url) == load_pepper("", tmp_path, url)


def test_two_installations_have_different_peppers(tmp_path: Path, url: URL) -> None:
    other = tmp_path / "other"
    other.mkdir()
    other_url = sqlite.store_url("", other)
    make_control(other)
    assert load_pepper("", tmp_path, url) != load_pepper("", other, other_url)


def test_changed_pepper_refuses_to_start_and_is_not_shown(tmp_path: Path, url: URL, path: Path) -> None:
    load_pepper("", tmp_path, url)
    path.write_text("f" * 64)
    with pytest.raises(StartError, match="not the one") as caught:
        load_pepper("", tmp_path, url)
    assert str(path) in str(caught.value)
    assert "f" * 64 not in str(caught.value)


def test_lost_pepper_refuses_to_start(tmp_path: Path, url: URL, path: Path) -> None:
    load_pepper("", tmp_path, url)
    path.unlink()
    with pytest.raises(StartError, match="not the one"):
        load_pepper("", tmp_path, url)


def test_pepper_that_is_put_back_starts_again(tmp_path: Path, url: URL, path: Path) -> None:
    made = load_pepper("", tmp_path, url)
    path.write_text("f" * 64)
    with pytest.raises(StartError):
        load_pepper("", tmp_path, url)
    path.write_bytes(made + b"\n")
    assert load_pepper("", tmp_path, url) == made


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666])
def test_pepper_that_others_can_reach_is_refused(mode: int, tmp_path: Path, url: URL, path: Path) -> None:
    load_pepper("", tmp_path, url)
    path.chmod(mode)
    with pytest.raises(StartError, match="chmod 600"):
        load_pepper("", tmp_path, url)


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"f" * 31])
def test_damaged_pepper_is_refused(content: bytes, tmp_path: Path, url: URL, path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(StartError, match="damaged"):
        load_pepper("", tmp_path, url)


def test_configured_pepper_is_used_and_no_file_is_made(tmp_path: Path, url: URL, path: Path) -> None:
    assert load_pepper(CONFIGURED, tmp_path, url) == CONFIGURED.encode()
    assert load_pepper(CONFIGURED, tmp_path, url) == CONFIGURED.encode()
    assert not path.exists()


def test_changed_configured_pepper_refuses_to_start(tmp_path: Path, url: URL) -> None:
    load_pepper(CONFIGURED, tmp_path, url)
    with pytest.raises(StartError, match=r"secrets\.pepper") as caught:
        load_pepper(CONFIGURED + "!", tmp_path, url)
    assert CONFIGURED not in str(caught.value)


def test_configured_pepper_after_a_made_one_refuses_to_start(tmp_path: Path, url: URL) -> None:
    load_pepper("", tmp_path, url)
    with pytest.raises(StartError, match="not the one"):
        load_pepper(CONFIGURED, tmp_path, url)


def test_a_pepper_is_replaced_while_the_one_before_is_there(tmp_path: Path, url: URL) -> None:
    old = load_pepper("", tmp_path, url)
    write_pepper(tmp_path / PREVIOUS_PEPPER, old)
    write_pepper(tmp_path / PEPPER, b"n" * 64)
    assert load_peppers(Settings(), tmp_path, url) == (b"n" * 64, old)
    (tmp_path / PREVIOUS_PEPPER).unlink()
    assert load_peppers(Settings(), tmp_path, url) == (b"n" * 64, None)
    write_pepper(tmp_path / PEPPER, old)
    with pytest.raises(StartError, match="not the one"):
        load_pepper("", tmp_path, url)


def test_a_configured_pepper_is_replaced_by_settings(tmp_path: Path, url: URL) -> None:
    load_pepper(CONFIGURED, tmp_path, url)
    assert load_pepper("new" + CONFIGURED, tmp_path, url, previous=CONFIGURED) == b"new" + CONFIGURED.encode()
    assert load_pepper("new" + CONFIGURED, tmp_path, url) == b"new" + CONFIGURED.encode()
    with pytest.raises(StartError, match="not the one"):
        load_pepper(CONFIGURED, tmp_path, url)


# --- Keys beside it ----------------------------------------------------------------------------------------------


def test_key_of_the_audit_log_outlives_the_pepper(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    first = prepare(settings)
    assert len(first.audit_key) == 32
    assert prepare(settings).audit_key == first.audit_key
    write_pepper(tmp_path / PREVIOUS_PEPPER, first.pepper)
    write_pepper(tmp_path / PEPPER, b"n" * 64)
    assert prepare(settings).audit_key == first.audit_key
    (tmp_path / PREVIOUS_PEPPER).unlink()
    assert prepare(settings).audit_key == first.audit_key
    assert first.audit_key not in (tmp_path / "control.db").read_bytes()
    assert first.audit_key.hex().encode() not in (tmp_path / "control.db").read_bytes()


def with_factor_key(**secrets: str) -> Settings:
    return Settings(secrets=SecretSettings(**secrets))


def test_key_of_second_factors_may_lie_in_a_file_elsewhere(tmp_path: Path, url: URL) -> None:
    file = tmp_path / "elsewhere"
    settings = with_factor_key(factor_key_file=str(file))
    with pytest.raises(StartError, match="cannot be read"):
        load_factor_key(settings, url)
    write_pepper(file, b"k" * 40)
    assert load_factor_key(settings, url) == b"k" * 40
    assert load_factor_key(with_factor_key(factor_key="k" * 40), url) == b"k" * 40
    file.chmod(0o640)
    with pytest.raises(StartError, match=f"chmod 600 {file}"):
        load_factor_key(settings, url)


@pytest.mark.parametrize(("then", "why"), [("", "is not set"), ("x" * 40, "is another one")])
def test_key_of_second_factors_is_never_silently_another_one(url: URL, then: str, why: str) -> None:
    assert load_factor_key(with_factor_key(), url) is None
    assert load_factor_key(with_factor_key(factor_key="k" * 40), url) == b"k" * 40
    with pytest.raises(StartError, match=why) as refused:
        load_factor_key(with_factor_key(factor_key=then), url)
    assert "kkkk" not in str(refused.value)
    assert "xxxx" not in str(refused.value)
