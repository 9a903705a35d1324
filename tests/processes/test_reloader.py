"""The parent's side of a reload, with a real file and a manual clock: what is read, handed over, written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tollgate.processes import shared_settings
from tollgate.processes.reloader import APPLY_SECONDS, FILE, Reloader, ReloadOutcome, ReloadRecord, read_record
from tollgate.processes.shared_settings import SharedSettings, slot_names
from tollgate.settings.file import Origin
from tollgate.settings.model import NetworkSettings, Settings, UpstreamSettings
from tollgate.shm.upstream_status import StatusSlots, assign_slots

KEY = "very-secret"
UPSTREAMS = """
[[families.eth.mainnet.upstreams]]
name = "{name}"
url = "http://127.0.0.1:1/very-secret"
"""


pytestmark = pytest.mark.usefixtures("own_logging")


class Harness:
    """A parent with two followers that do what the test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "tollgate.toml"
        self.now = 50.0
        self.write(UPSTREAMS.format(name="a"))
        self.origin = Origin(self.file, {"HOME": "/root"})
        settings = self.origin.load()
        self.shared = SharedSettings(
            settings, assign_slots(StatusSlots(), slot_names(settings)), ["worker-0", "worker-1"]
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
    def record(self) -> ReloadRecord:
        return read_record(self.folder)

    @property
    def outcome(self) -> ReloadOutcome:
        return self.record.outcomes[0]

    def reload(self, text: str) -> ReloadOutcome:
        """A whole reload that everybody follows."""
        self.write(text)
        self.reloader.request()
        self.reloader.tick()
        self.applied()
        assert not self.reloader.tick()
        return self.outcome


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def test_nothing_happens_unasked(harness: Harness) -> None:
    assert not harness.reloader.tick()
    assert harness.record == ReloadRecord()


def test_change_is_handed_over_and_reported_when_everybody_has_it(harness: Harness) -> None:
    harness.write("[limits]\nbatch_calls = 7\n" + UPSTREAMS.format(name="b"))
    harness.reloader.request()
    assert harness.reloader.tick(), "under way"
    assert harness.shared.current.settings.limits.batch_calls == 7
    assert harness.shared.current.slots.upstreams == {"eth/mainnet/a": 0, "eth/mainnet/b": 1}
    assert harness.record == ReloadRecord(started=1)
    harness.applied("worker-0")
    assert harness.reloader.tick()
    harness.applied("worker-1")
    assert not harness.reloader.tick()
    assert harness.outcome == ReloadOutcome(
        asked=1,
        generation=1,
        at=1000.0,
        ok=True,
        file=str(harness.file),
        changed=("limits.batch_calls: 100 -> 7", "families.eth.mainnet.upstreams: + b, - a"),
    )


def test_file_is_for_its_owner_alone_and_holds_no_secret(harness: Harness) -> None:
    harness.reload("[secrets]\npepper = '" + KEY * 4 + "'\n" + UPSTREAMS.format(name="b"))
    assert (harness.folder / FILE).stat().st_mode & 0o777 == 0o600
    assert KEY not in (harness.folder / FILE).read_text()
    assert sorted(path.name for path in harness.folder.iterdir()) == [FILE, "tollgate.toml"]


def test_rows_stay_with_their_names(harness: Harness) -> None:
    harness.reload(UPSTREAMS.format(name="b"))
    harness.reload(UPSTREAMS.format(name="c"))
    harness.reload(UPSTREAMS.format(name="a"))
    assert harness.shared.current.slots.upstreams == {f"eth/mainnet/{name}": row for row, name in enumerate("abc")}


def test_what_needs_a_restart_is_named_and_left(harness: Harness) -> None:
    outcome = harness.reload("[server]\nport = 9000\n[limits]\nbatch_calls = 7\n" + UPSTREAMS.format(name="a"))
    assert (outcome.ok, outcome.changed, outcome.restart_needed) == (
        True,
        ("limits.batch_calls: 100 -> 7",),
        ("server.port",),
    )
    assert harness.shared.current.settings.server == Settings().server
    again = harness.reload(harness.file.read_text())
    assert (again.ok, again.changed, again.restart_needed) == (True, (), ("server.port",)), "as long as it differs"


def test_unchanged_file_is_not_passed_on(harness: Harness) -> None:
    harness.reloader.request()
    assert not harness.reloader.tick()
    assert harness.shared.current.generation == 0
    assert (harness.outcome.ok, harness.outcome.changed) == (True, ())


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
def test_bad_file_changes_nothing_and_is_reported_as_config_check_does(
    harness: Harness, text: str, words: str
) -> None:
    before = harness.shared.current
    harness.write(text)
    harness.reloader.request()
    assert not harness.reloader.tick()
    assert harness.shared.current is before
    assert not harness.outcome.ok
    assert words in harness.outcome.error
    assert KEY not in harness.outcome.error


def test_file_that_is_gone_changes_nothing(harness: Harness) -> None:
    harness.file.unlink()
    harness.reloader.request()
    harness.reloader.tick()
    assert "there is no such file" in harness.outcome.error


@pytest.mark.parametrize("origin", [None, Origin(None, {})])
def test_service_without_a_file_reports_it(harness: Harness, origin: Origin | None) -> None:
    reloader = harness.made(origin)
    reloader.request()
    assert not reloader.tick()
    assert (harness.outcome.ok, harness.outcome.file) == (False, "")
    assert "without a settings file" in harness.outcome.error


def test_environment_of_the_start_still_counts(harness: Harness) -> None:
    reloader = harness.made(Origin(harness.file, {"TOLLGATE_LIMITS__BATCH_CALLS": "9"}))
    harness.write("[limits]\nbatch_calls = 7\n" + UPSTREAMS.format(name="a"))
    reloader.request()
    reloader.tick()
    assert harness.shared.current.settings.limits.batch_calls == 9


def test_too_many_upstreams_are_refused(harness: Harness) -> None:
    harness.write("".join(UPSTREAMS.format(name=f"n{number}") for number in range(300)))
    harness.reloader.request()
    assert not harness.reloader.tick()
    assert harness.shared.current.generation == 0
    assert "restart" in harness.outcome.error


def test_settings_that_are_too_large_are_refused(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_settings, "MAX_BYTES", 80_000)
    harness.write(UPSTREAMS.format(name="a") + f'headers = {{ X = "{"a" * 90_000}" }}\n')
    harness.reloader.request()
    assert not harness.reloader.tick()
    assert harness.shared.current.generation == 0
    assert "bytes" in harness.outcome.error


def test_who_does_not_follow_in_time_is_named(harness: Harness) -> None:
    harness.write(UPSTREAMS.format(name="b"))
    harness.reloader.request()
    harness.reloader.tick()
    harness.applied("worker-0")
    harness.now += APPLY_SECONDS - 0.1
    assert harness.reloader.tick()
    harness.now += 0.2
    assert not harness.reloader.tick()
    assert (harness.outcome.ok, harness.outcome.generation) == (False, 1)
    assert harness.outcome.changed == ("families.eth.mainnet.upstreams: + b, - a",)
    assert "worker-1 did not apply it within 10 s" in harness.outcome.error
    assert "worker-0" not in harness.outcome.error


def test_who_could_not_follow_is_named_at_once(harness: Harness) -> None:
    harness.write(UPSTREAMS.format(name="b"))
    harness.reloader.request()
    harness.reloader.tick()
    harness.applied("worker-0")
    harness.shared.refused("worker-1", 1)
    assert not harness.reloader.tick()
    assert "worker-1 could not apply it" in harness.outcome.error


@pytest.mark.parametrize("how", ["late", "failed"])
def test_who_did_not_follow_is_given_the_same_again(harness: Harness, how: str) -> None:
    harness.write(UPSTREAMS.format(name="b"))
    harness.reloader.request()
    harness.reloader.tick()
    harness.applied("worker-0")
    if how == "failed":
        harness.shared.refused("worker-1", 1)
    harness.now += APPLY_SECONDS
    harness.reloader.tick()
    outcome = harness.reload(harness.file.read_text())
    assert (outcome.ok, outcome.generation) == (True, 2)


def test_second_reload_waits_for_the_end_of_the_first_and_reads_anew(harness: Harness) -> None:
    harness.write("[limits]\nbatch_calls = 7\n" + UPSTREAMS.format(name="a"))
    harness.reloader.request()
    harness.reloader.tick()
    harness.write("[limits]\nbatch_calls = 8\n" + UPSTREAMS.format(name="a"))
    harness.reloader.request()
    harness.reloader.tick()
    assert (harness.record.started, harness.shared.current.generation) == (1, 1)
    harness.applied()
    assert harness.reloader.tick(), "the second is still to come"
    assert [outcome.asked for outcome in harness.record.outcomes] == [1]
    harness.reloader.tick()
    harness.applied()
    assert not harness.reloader.tick()
    written = [(outcome.asked, outcome.changed) for outcome in harness.record.outcomes]
    assert written == [(2, ("limits.batch_calls: 7 -> 8",)), (1, ("limits.batch_calls: 100 -> 7",))]


def test_beginning_is_written_before_the_settings_are_read(harness: Harness) -> None:
    """A client that read an older number called before: its change is read."""
    seen: list[int] = []

    class Watched(Origin, frozen=True):
        def load(self) -> Settings:
            seen.append(harness.record.started)
            return Origin.load(self)

    reloader = harness.made(Watched(harness.file, {}))
    for _ in range(2):
        reloader.request()
        reloader.tick()
    assert seen == [1, 2]


def test_few_outcomes_are_kept(harness: Harness) -> None:
    for _ in range(20):
        harness.reloader.request()
        harness.reloader.tick()
    assert [outcome.asked for outcome in harness.record.outcomes] == list(range(20, 12, -1))


def test_defect_is_reported_and_the_service_goes_on(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Origin, frozen=True):
        def load(self) -> Settings:
            raise LookupError("a defect")

    reloader = harness.made(Broken(harness.file, {}))
    reloader.request()
    assert not reloader.tick()
    assert "a defect" in capsys.readouterr().out
    assert not harness.outcome.ok


def test_folder_that_cannot_be_written_does_not_stop_a_reload(harness: Harness) -> None:
    reloader = Reloader(harness.origin, harness.shared, harness.folder / "nowhere")
    harness.write(UPSTREAMS.format(name="b"))
    reloader.request()
    reloader.tick()
    harness.applied()
    assert not reloader.tick()
    assert harness.shared.current.generation == 1


def test_what_a_service_before_has_left_is_forgotten(harness: Harness) -> None:
    harness.reload(UPSTREAMS.format(name="b"))
    harness.made(harness.origin).forget()
    assert harness.record == ReloadRecord()
    harness.made(harness.origin).forget()


def test_level_of_the_log_changes_in_the_parent(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    harness.reload("[logging]\nlevel = 'error'\nformat = 'json'\n" + UPSTREAMS.format(name="a"))
    assert harness.outcome.restart_needed == ("logging.format",)
    assert "settings reloaded" not in capsys.readouterr().err


def test_outcome_is_logged_without_secrets(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    harness.reload(UPSTREAMS.format(name="b").replace(KEY, "another-secret"))
    output = capsys.readouterr().out
    assert "settings reloaded" in output
    assert "secret" not in output


def test_file_is_one_json_object(harness: Harness) -> None:
    harness.reload(UPSTREAMS.format(name="b"))
    written = json.loads((harness.folder / FILE).read_text())
    assert written["started"] == 1
    assert set(written["outcomes"][0]) == {
        "asked", "generation", "at", "ok", "file", "changed", "restart_needed", "error",
    }  # fmt: skip


def test_no_secret_is_in_a_repr() -> None:
    assert KEY not in repr(Origin(Path("tollgate.toml"), {"TOLLGATE_SECRETS__PEPPER": KEY}))
    assert KEY not in repr(NetworkSettings(upstreams=(UpstreamSettings(name="a", url=f"http://{KEY}"),)))
