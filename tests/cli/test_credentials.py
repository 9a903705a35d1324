"""Where logins are kept: modes, whole files, the lock, the keyring and its failures."""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING

import pytest

from tollgate.cli.credentials import Choices, Credential, CredentialStore, Keyring, KeyringError, SystemKeyring
from tollgate.cli.failures import Failure

if TYPE_CHECKING:
    from pathlib import Path

URL, OTHER = "https://a.example.com", "https://b.example.com"
LOGIN = Credential("tool", "tga_secret", refresh="tgr_secret", expires_at=5.5)
PERSONAL = Credential("personal", "tgp_secret")


class FakeVault:
    """A keyring in memory that can be made to fail."""

    def __init__(self, *, fails: str = "") -> None:
        self.held: dict[str, str] = {}
        self.fails = fails

    def _fail(self, what: str) -> None:
        if what in self.fails:
            raise KeyringError("KeyringLocked")

    def get(self, url: str) -> str | None:
        self._fail("get")
        return self.held.get(url)

    def put(self, url: str, text: str) -> None:
        self._fail("put")
        self.held[url] = text

    def delete(self, url: str) -> None:
        self._fail("delete")
        del self.held[url]


def keep_in(folder: Path, keyring: Keyring | None = None, warnings: list[str] | None = None) -> CredentialStore:
    warned: list[str] = [] if warnings is None else warnings
    return CredentialStore(folder / "tollgate", keyring=lambda: keyring, warn=warned.append)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nothing_is_kept_at_first_and_looking_makes_no_folder(tmp_path: Path) -> None:
    keep = keep_in(tmp_path)
    assert (keep.credential(URL), keep.choices(), keep.team_at(URL)) == (None, Choices(), None)
    assert list(tmp_path.iterdir()) == []


def test_logins_are_kept_by_server(tmp_path: Path) -> None:
    keep = keep_in(tmp_path)
    keep.put(URL, LOGIN)
    keep.put(OTHER, PERSONAL)
    again = keep_in(tmp_path)
    assert (again.credential(URL), again.credential(OTHER)) == (LOGIN, PERSONAL)
    again.forget(URL)
    assert (keep.credential(URL), keep.credential(OTHER)) == (None, PERSONAL)


def test_only_the_owner_can_read_what_is_kept_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keep = keep_in(tmp_path)
        keep.put(URL, LOGIN)
        keep.choose(URL, "acme")
    finally:
        os.umask(before)
    assert mode(keep.folder) == 0o700
    assert {mode(path) for path in keep.folder.iterdir()} == {0o600}
    assert {path.name for path in keep.folder.iterdir()} == {"credentials.json", "config.json", "lock"}


def test_a_folder_that_others_can_enter_is_restricted(tmp_path: Path) -> None:
    (tmp_path / "tollgate").mkdir(mode=0o755)
    keep_in(tmp_path).put(URL, LOGIN)
    assert mode(tmp_path / "tollgate") == 0o700


def test_a_file_that_others_can_read_is_restricted_with_a_warning_and_used(tmp_path: Path) -> None:
    warnings: list[str] = []
    keep = keep_in(tmp_path, warnings=warnings)
    keep.put(URL, LOGIN)
    keep.credentials_file.chmod(0o644)
    assert keep.credential(URL) == LOGIN
    assert mode(keep.credentials_file) == 0o600
    assert warnings == [f"{keep.credentials_file} was readable by others (mode 0644); its mode is now 0600."]
    assert keep.credential(URL) == LOGIN
    assert len(warnings) == 1


def test_a_file_is_replaced_whole_and_no_draft_stays(tmp_path: Path) -> None:
    keep = keep_in(tmp_path)
    keep.put(URL, LOGIN)
    reader = keep.credentials_file.open("rb")
    keep.put(URL, PERSONAL)
    with reader:
        assert b"tga_secret" in reader.read()  # who had it open sees all of the old one
    assert [path.name for path in keep.folder.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"https://a.example.com": {"credential": 5}}', b"\xff"])
def test_a_file_that_is_not_ours_reports_it_and_how_to_go_on(tmp_path: Path, content: bytes) -> None:
    keep = keep_in(tmp_path)
    keep.put(URL, LOGIN)
    keep.credentials_file.write_bytes(content)
    with pytest.raises(
        Failure, match=r"was not written by this version of tollgate\. Remove it, then run: tollgate auth login"
    ):
        keep.credential(URL)


def test_a_folder_that_cannot_be_made_shows_how_to_do_without(tmp_path: Path) -> None:
    (tmp_path / "tollgate").write_text("a file in place of the folder")
    with pytest.raises(
        Failure, match=r"cannot be written \(.*\)\. Fix that.*XDG_CONFIG_HOME, or use TOLLGATE_TOKEN"
    ):
        keep_in(tmp_path).put(URL, LOGIN)


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    keep = keep_in(tmp_path)
    (keep.folder / "config.json").mkdir(parents=True)  # a rename onto a folder fails
    with pytest.raises(Failure, match="cannot be written"):
        keep.choose(URL, "acme")
    assert [path.name for path in keep.folder.iterdir()] == ["config.json"]


def test_the_team_belongs_to_its_server(tmp_path: Path) -> None:
    keep = keep_in(tmp_path)
    keep.choose(URL, "acme")
    assert (keep.team_at(URL), keep.team_at(OTHER)) == ("acme", None)
    assert keep.choices() == Choices(URL, "acme")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CONFIG_HOME": "/somewhere"}, "/somewhere/tollgate"),
        ({"XDG_CONFIG_HOME": ""}, "/home/ann/.config/tollgate"),
        ({"XDG_CONFIG_HOME": "relative"}, "/home/ann/.config/tollgate"),
        ({}, "/home/ann/.config/tollgate"),
    ],
)
def test_the_folder_is_where_xdg_specifies(
    environ: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert str(CredentialStore.at_home(environ).folder) == folder


def test_secrets_stay_out_of_reprs() -> None:
    assert "secret" not in repr(LOGIN) + repr(PERSONAL)


# ---- the lock


def test_a_lock_held_by_another_is_waited_for_only_so_long(tmp_path: Path) -> None:
    keep = CredentialStore(tmp_path, keyring=lambda: None, lock_seconds=0.0)
    with (tmp_path / "lock").open("w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(Failure, match=r"Another tollgate holds .*lock\. Try again"):
            keep.put(URL, LOGIN)
    keep.put(URL, LOGIN)


def test_holder_of_the_lock_can_store_a_login(tmp_path: Path) -> None:
    keep = keep_in(tmp_path)
    with keep.locked():
        keep.put(URL, LOGIN)
        other = CredentialStore(keep.folder, keyring=lambda: None, lock_seconds=0.0)
        with pytest.raises(Failure, match="Another tollgate"):
            other.forget(URL)
    assert keep.credential(URL) == LOGIN


# ---- the keyring


def test_a_usable_keyring_holds_the_login_and_the_file_only_refers_to_it(tmp_path: Path) -> None:
    keyring = FakeVault()
    keep = keep_in(tmp_path, keyring)
    keep.put(URL, LOGIN)
    assert keep.credential(URL) == LOGIN
    assert keep.place(URL) == "the system keyring"
    assert "secret" not in keep.credentials_file.read_text()
    keep.forget(URL)
    assert (keyring.held, keep.credential(URL)) == ({}, None)


def test_without_a_keyring_the_file_holds_it(tmp_path: Path) -> None:
    keep = keep_in(tmp_path)
    keep.put(URL, LOGIN)
    assert keep.place(URL) == str(keep.credentials_file)


def test_a_keyring_that_refuses_is_reported_and_the_file_holds_it(tmp_path: Path) -> None:
    warnings: list[str] = []
    keep = keep_in(tmp_path, FakeVault(fails="put"), warnings)
    keep.put(URL, LOGIN)
    assert warnings == [
        "The system keyring did not accept the login (KeyringLocked): it is stored in a file instead."
    ]
    assert keep.credential(URL) == LOGIN
    assert keep.place(URL) == str(keep.credentials_file)


def test_a_login_in_the_file_is_read_without_a_look_at_the_keyring(tmp_path: Path) -> None:
    keep_in(tmp_path).put(URL, LOGIN)

    def never() -> Keyring | None:
        raise AssertionError("the keyring was used")

    assert CredentialStore(tmp_path / "tollgate", keyring=never).credential(URL) == LOGIN


@pytest.mark.parametrize("renewed", [PERSONAL, LOGIN])
def test_a_renewed_login_stays_where_it_was(tmp_path: Path, renewed: Credential) -> None:
    keep_in(tmp_path).put(URL, LOGIN)
    keyring = FakeVault()
    keep = keep_in(tmp_path, keyring)
    keep.renew(URL, renewed)
    assert (keep.credential(URL), keyring.held) == (renewed, {})
    keep.put(OTHER, LOGIN)
    keep.renew(OTHER, renewed)
    assert keep.credential(OTHER) == renewed
    assert list(keyring.held) == [OTHER]


@pytest.mark.parametrize("keyring", [None, FakeVault(fails="get")])
def test_a_keyring_that_has_gone_shows_how_to_go_on(tmp_path: Path, keyring: Keyring | None) -> None:
    keep_in(tmp_path, FakeVault()).put(URL, LOGIN)
    with pytest.raises(Failure, match=r"keyring.*Run: tollgate auth login \(or set TOLLGATE_TOKEN\)"):
        keep_in(tmp_path, keyring).credential(URL)


def test_an_invalid_keyring_entry_shows_how_to_go_on(tmp_path: Path) -> None:
    keyring = FakeVault()
    keep = keep_in(tmp_path, keyring)
    keep.put(URL, LOGIN)
    keyring.held[URL] = "hunter2"
    with pytest.raises(Failure, match="its entry is not a login") as caught:
        keep.credential(URL)
    assert "hunter2" not in str(caught.value)


def test_a_login_deleted_from_the_keyring_is_no_login(tmp_path: Path) -> None:
    keyring = FakeVault()
    keep = keep_in(tmp_path, keyring)
    keep.put(URL, LOGIN)
    keyring.held.clear()
    assert keep.credential(URL) is None


def test_a_keyring_that_fails_to_delete_is_reported(tmp_path: Path) -> None:
    warnings: list[str] = []
    keep = keep_in(tmp_path, FakeVault(fails="delete"), warnings)
    keep.put(URL, LOGIN)
    keep.forget(URL)
    assert warnings == ["The system keyring did not delete the login (KeyringLocked)."]
    assert keep.credential(URL) is None


def test_what_a_backend_raises_never_carries_the_secret() -> None:
    class Backend:
        def set_password(self, service: str, user: str, password: str) -> None:
            raise RuntimeError(f"cannot store {password}")

    with pytest.raises(KeyringError) as caught:
        SystemKeyring(Backend()).put(URL, "hunter2")
    assert str(caught.value) == "RuntimeError"
    assert caught.value.__suppress_context__
