"""The parent's side of a reload, with a real file and a manual clock: what is read, handed over, written down."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tollgate.processes.reload import SharedSettings, row_names
from tollgate.processes.reloader import APPLY_SECONDS, FILE, Record, Reloader, ReloadOutcome, read_record
from tollgate.settings.file import Origin
from tollgate.settings.model import NetworkSettings, Settings, UpstreamSettings
from tollgate.shm.upstream_status import StatusSlots, assign_slots

KEY = "very-secret"
UPSTREAMS = """
[[families.eth.mainnet.upstreams]]
name = "{name}"
url = "http://127.0.0.1:1/very-secret"
"""


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    handlers = logging.root.handlers[:]
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers


class House:
    """A parent with two followers that do what the test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "tollgate.toml"
        self.now = 50.0
        self.write(UPSTREAMS.format(name="a"))
        self.origin = Origin(self.file, {"HOME": "/root"})
        settings = self.origin.load()
        self.shared = SharedSettings(
            settings, assign_slots(StatusSlots(), row_names(settings)), ["worker-0", "worker-1"]
        )
        self.reloader = self.made(self.origin)

    def made(self, origin: Origin | None) -> Reloader:
        return Reloader(origin, self.shared, self.folder, now=lambda: self.now, wall=lambda: 1000.0)

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def applied(self, *names: str) -> None:
        for name in names or ("worker-0", "worker-1"):
            self.shared.applied(name, self.shared.current.generation)

    @property
    def record(self) -> Record:
        return read_record(self.folder)

    @property
    def outcome(self) -> ReloadOutcome:
        return self.record.outcomes[0]

    def reload(self, text: str) -> ReloadOutcome:
        """A whole reload that everybody follows."""
        self.write(text)
        self.reloader.request()
        self.reloader.turn()
        self.applied()
        assert not self.reloader.turn()
        return self.outcome


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_nothing_happens_unasked(house: House) -> None:
    assert not house.reloader.turn()
    assert house.record == Record()


def test_change_is_handed_over_and_told_when_everybody_has_it(house: House) -> None:
    house.write("[limits]\nbatch_calls = 7\n" + UPSTREAMS.format(name="b"))
    house.reloader.request()
    assert house.reloader.turn(), "under way"
    assert house.shared.current.settings.limits.batch_calls == 7
    assert house.shared.current.slots.upstreams == {"eth/mainnet/a": 0, "eth/mainnet/b": 1}
    assert house.record == Record(begun=1)
    house.applied("worker-0")
    assert house.reloader.turn()
    house.applied("worker-1")
    assert not house.reloader.turn()
    assert house.outcome == ReloadOutcome(
        asked=1,
        generation=1,
        at=1000.0,
        ok=True,
        file=str(house.file),
        changed=("limits.batch_calls: 100 -> 7", "families.eth.mainnet.upstreams: + b, - a"),
    )


def test_file_is_for_its_owner_alone_and_holds_no_secret(house: House) -> None:
    house.reload("[secrets]\npepper = '" + KEY * 4 + "'\n" + UPSTREAMS.format(name="b"))
    assert (house.folder / FILE).stat().st_mode & 0o777 == 0o600
    assert KEY not in (house.folder / FILE).read_text()
    assert sorted(path.name for path in house.folder.iterdir()) == [FILE, "tollgate.toml"]


def test_rows_stay_with_their_names(house: House) -> None:
    house.reload(UPSTREAMS.format(name="b"))
    house.reload(UPSTREAMS.format(name="c"))
    house.reload(UPSTREAMS.format(name="a"))
    assert house.shared.current.slots.upstreams == {f"eth/mainnet/{name}": row for row, name in enumerate("abc")}


def test_what_needs_a_restart_is_named_and_left(house: House) -> None:
    outcome = house.reload("[server]\nport = 9000\n[limits]\nbatch_calls = 7\n" + UPSTREAMS.format(name="a"))
    assert (outcome.ok, outcome.changed, outcome.restart_needed) == (
        True,
        ("limits.batch_calls: 100 -> 7",),
        ("server.port",),
    )
    assert house.shared.current.settings.server == Settings().server
    again = house.reload(house.file.read_text())
    assert (again.ok, again.changed, again.restart_needed) == (True, (), ("server.port",)), "as long as it differs"


def test_unchanged_file_is_handed_to_nobody(house: House) -> None:
    house.reloader.request()
    assert not house.reloader.turn()
    assert house.shared.current.generation == 0
    assert (house.outcome.ok, house.outcome.changed) == (True, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limits]\nbatch_calls = 0\n" + UPSTREAMS.format(name="b"), "tollgate.toml:2: `limits.batch_calls`"),
        ("[limits\n", "tollgate.toml:1: is not valid TOML"),
        ("", "no networks are set"),
        ("[families.eth.mainnet]\n", "families.eth.mainnet has no upstreams"),
        ("[serve]\n" + UPSTREAMS.format(name="b"), "did you mean `server`?"),
    ],
)
def test_bad_file_changes_nothing_and_is_told_as_config_check_does(house: House, text: str, words: str) -> None:
    before = house.shared.current
    house.write(text)
    house.reloader.request()
    assert not house.reloader.turn()
    assert house.shared.current is before
    assert not house.outcome.ok
    assert words in house.outcome.error
    assert KEY not in house.outcome.error


def test_file_that_is_gone_changes_nothing(house: House) -> None:
    house.file.unlink()
    house.reloader.request()
    house.reloader.turn()
    assert "there is no such file" in house.outcome.error


@pytest.mark.parametrize("origin", [None, Origin(None, {})])
def test_service_without_a_file_says_so(house: House, origin: Origin | None) -> None:
    reloader = house.made(origin)
    reloader.request()
    assert not reloader.turn()
    assert (house.outcome.ok, house.outcome.file) == (False, "")
    assert "without a settings file" in house.outcome.error


def test_environment_of_the_start_still_counts(house: House) -> None:
    reloader = house.made(Origin(house.file, {"TOLLGATE_LIMITS__BATCH_CALLS": "9"}))
    house.write("[limits]\nbatch_calls = 7\n" + UPSTREAMS.format(name="a"))
    reloader.request()
    reloader.turn()
    assert house.shared.current.settings.limits.batch_calls == 9


def test_too_many_upstreams_are_refused(house: House) -> None:
    house.write("".join(UPSTREAMS.format(name=f"n{number}") for number in range(300)))
    house.reloader.request()
    assert not house.reloader.turn()
    assert house.shared.current.generation == 0
    assert "restart" in house.outcome.error


def test_settings_that_are_too_large_are_refused(house: House) -> None:
    house.write(UPSTREAMS.format(name="a") + f'headers = {{ X = "{"a" * 9_000_000}" }}\n')
    house.reloader.request()
    assert not house.reloader.turn()
    assert house.shared.current.generation == 0
    assert "bytes" in house.outcome.error


def test_who_does_not_follow_in_time_is_named(house: House) -> None:
    house.write(UPSTREAMS.format(name="b"))
    house.reloader.request()
    house.reloader.turn()
    house.applied("worker-0")
    house.now += APPLY_SECONDS - 0.1
    assert house.reloader.turn()
    house.now += 0.2
    assert not house.reloader.turn()
    assert (house.outcome.ok, house.outcome.generation) == (False, 1)
    assert house.outcome.changed == ("families.eth.mainnet.upstreams: + b, - a",)
    assert "worker-1 did not apply it within 10 s" in house.outcome.error
    assert "worker-0" not in house.outcome.error


def test_who_could_not_follow_is_named_at_once(house: House) -> None:
    house.write(UPSTREAMS.format(name="b"))
    house.reloader.request()
    house.reloader.turn()
    house.applied("worker-0")
    house.shared.refused("worker-1", 1)
    assert not house.reloader.turn()
    assert "worker-1 could not apply it" in house.outcome.error


@pytest.mark.parametrize("how", ["late", "failed"])
def test_who_did_not_follow_is_given_the_same_again(house: House, how: str) -> None:
    house.write(UPSTREAMS.format(name="b"))
    house.reloader.request()
    house.reloader.turn()
    house.applied("worker-0")
    if how == "failed":
        house.shared.refused("worker-1", 1)
    house.now += APPLY_SECONDS
    house.reloader.turn()
    outcome = house.reload(house.file.read_text())
    assert (outcome.ok, outcome.generation) == (True, 2)


def test_second_reload_waits_for_the_end_of_the_first_and_reads_anew(house: House) -> None:
    house.write("[limits]\nbatch_calls = 7\n" + UPSTREAMS.format(name="a"))
    house.reloader.request()
    house.reloader.turn()
    house.write("[limits]\nbatch_calls = 8\n" + UPSTREAMS.format(name="a"))
    house.reloader.request()
    house.reloader.turn()
    assert (house.record.begun, house.shared.current.generation) == (1, 1)
    house.applied()
    assert house.reloader.turn(), "the second is still to come"
    assert [outcome.asked for outcome in house.record.outcomes] == [1]
    house.reloader.turn()
    house.applied()
    assert not house.reloader.turn()
    told = [(outcome.asked, outcome.changed) for outcome in house.record.outcomes]
    assert told == [(2, ("limits.batch_calls: 7 -> 8",)), (1, ("limits.batch_calls: 100 -> 7",))]


def test_beginning_is_written_before_the_settings_are_read(house: House) -> None:
    """Whoever read an older number asked before: what they have changed is read."""
    seen: list[int] = []

    class Watched(Origin, frozen=True):
        def load(self) -> Settings:
            seen.append(house.record.begun)
            return Origin.load(self)

    reloader = house.made(Watched(house.file, {}))
    for _ in range(2):
        reloader.request()
        reloader.turn()
    assert seen == [1, 2]


def test_few_outcomes_are_kept(house: House) -> None:
    for _ in range(20):
        house.reloader.request()
        house.reloader.turn()
    assert [outcome.asked for outcome in house.record.outcomes] == list(range(20, 12, -1))


def test_defect_is_told_and_the_service_goes_on(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Origin, frozen=True):
        def load(self) -> Settings:
            raise LookupError("a defect")

    reloader = house.made(Broken(house.file, {}))
    reloader.request()
    assert not reloader.turn()
    assert "a defect" in capsys.readouterr().out
    assert not house.outcome.ok


def test_folder_that_cannot_be_written_does_not_stop_a_reload(house: House) -> None:
    reloader = Reloader(house.origin, house.shared, house.folder / "nowhere")
    house.write(UPSTREAMS.format(name="b"))
    reloader.request()
    reloader.turn()
    house.applied()
    assert not reloader.turn()
    assert house.shared.current.generation == 1


def test_what_a_service_before_has_left_is_forgotten(house: House) -> None:
    house.reload(UPSTREAMS.format(name="b"))
    house.made(house.origin).forget()
    assert house.record == Record()
    house.made(house.origin).forget()


def test_level_of_the_log_changes_in_the_parent(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.reload("[logging]\nlevel = 'error'\nformat = 'json'\n" + UPSTREAMS.format(name="a"))
    assert house.outcome.restart_needed == ("logging.format",)
    assert "settings reloaded" not in capsys.readouterr().err


def test_outcome_is_logged_without_secrets(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.reload(UPSTREAMS.format(name="b").replace(KEY, "another-secret"))
    said = capsys.readouterr().out
    assert "settings reloaded" in said
    assert "secret" not in said


def test_file_is_one_json_object(house: House) -> None:
    house.reload(UPSTREAMS.format(name="b"))
    told = json.loads((house.folder / FILE).read_text())
    assert told["begun"] == 1
    assert set(told["outcomes"][0]) == {
        "asked", "generation", "at", "ok", "file", "changed", "restart_needed", "error",
    }  # fmt: skip


def test_no_secret_is_in_a_repr() -> None:
    assert KEY not in repr(Origin(Path("tollgate.toml"), {"TOLLGATE_SECRETS__PEPPER": KEY}))
    assert KEY not in repr(NetworkSettings(upstreams=(UpstreamSettings(name="a", url=f"http://{KEY}"),)))
