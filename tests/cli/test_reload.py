"""`tollgate reload` beside a real parent process that serves nothing: what it prints and ends with."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from parts.processes import Program, eventually, running
from tollgate.cli import reload as command
from tollgate.cli.failures import Failure
from tollgate.processes.reloader import FILE, read_record
from tollgate.processes.service_lock import NAME, ServiceLock

if TYPE_CHECKING:
    from tests.cli.conftest import Ran, Tool

pytestmark = pytest.mark.e2e

KEY = "very-secret"
UPSTREAM = '[[families.eth.mainnet.upstreams]]\nname = "{}"\nurl = "http://127.0.0.1:1/very-secret"\n'


class Harness:
    """A settings file, a data folder beside it, and the tool."""

    def __init__(self, tool: Tool, folder: Path) -> None:
        self.tool = tool
        self.data = folder / "data"
        self.data.mkdir()
        self.file = folder / "tollgate.toml"
        self.output = folder / "output"
        self.write()

    def write(self, text: str = "", upstream: str = "a") -> None:
        self.file.write_text(f'data_dir = "data"\n{text}\n{UPSTREAM.format(upstream)}')

    def reload(self, *arguments: str, **env: str) -> Ran:
        return self.tool.run("reload", "--config", str(self.file), *arguments, env={**env})

    @contextmanager
    def service(self, *arguments: str) -> Iterator[Program]:
        script = Path(__file__).with_name("small_service.py")
        given = arguments or (str(self.file),)
        argv = [sys.executable, str(script), str(self.data), *given]
        with running(
            argv, folder=self.output / f"{len(arguments)}", ready=lambda program: program.lines()
        ) as program:
            yield program


@pytest.fixture
def harness(tool: Tool, tmp_path: Path) -> Harness:
    return Harness(tool, tmp_path)


def test_changes_are_reported_on_stderr(harness: Harness) -> None:
    with harness.service():
        harness.write("[limits]\nbatch_calls = 7", upstream="b")
        ran = harness.reload()
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines() == [
        f"{harness.file}: applied",
        "  limits.batch_calls: 100 -> 7",
        "  families.eth.mainnet.upstreams: + b, - a",
    ]


def test_both_services_of_a_folder_are_reloaded(harness: Harness) -> None:
    with harness.service(), harness.service(str(harness.file), "--collector"):
        harness.write("[limits]\nbatch_calls = 7")
        ran = harness.reload()
        assert (ran.code, ran.out) == (0, "")
        applied = [f"{harness.file}: applied", "  limits.batch_calls: 100 -> 7"]
        assert ran.err.splitlines() == ["gateway:", *applied, "collector:", *applied]
    with harness.service(str(harness.file), "--collector"):
        assert harness.reload().code == 0, "also where no gateway is there"


def test_json_has_everything_and_no_secret(harness: Harness) -> None:
    with harness.service():
        harness.write("[server]\nport = 9000\n[limits]\nbatch_calls = 7", upstream="b")
        ran = harness.reload("--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json.pop("at") > 0
    assert ran.json | {"at": 0} == {
        "asked": 1,
        "generation": 1,
        "at": 0,
        "ok": True,
        "file": str(harness.file),
        "changed": ["limits.batch_calls: 100 -> 7", "families.eth.mainnet.upstreams: + b, - a"],
        "restart_needed": ["server.port"],
        "error": "",
    }
    assert KEY not in ran.out


def test_what_needs_a_restart_is_named(harness: Harness) -> None:
    with harness.service():
        harness.write("[server]\nport = 9000")
        ran = harness.reload()
    assert (ran.code, ran.err.splitlines()) == (
        0,
        [f"{harness.file}: nothing else has changed", "server.port needs a restart"],
    )


def test_nothing_changed(harness: Harness) -> None:
    with harness.service():
        ran = harness.reload()
    assert (ran.code, ran.err) == (0, f"{harness.file}: nothing has changed\n")


def test_bad_settings_are_refused_in_the_words_of_config_check(harness: Harness) -> None:
    with harness.service():
        harness.write("[limits]\nbatch_calls = 0\nbody_byte = 3")
        ran = harness.reload()
        checked = harness.tool.run("config", "check", "--config", str(harness.file))
        reloaded = harness.reload("--json")
    assert (ran.code, checked.code, reloaded.code) == (1, 1, 1)
    assert ran.err == "Nothing was changed:\n" + checked.err
    assert reloaded.json["error"] + "\n" == checked.err
    assert (reloaded.json["ok"], reloaded.json["generation"], reloaded.json["changed"]) == (False, 0, [])


def test_file_that_is_no_toml_is_refused_in_the_same_words(harness: Harness) -> None:
    with harness.service():
        harness.file.write_text("[limits\n")
        ran = harness.reload()
        checked = harness.tool.run("config", "check", "--config", str(harness.file))
    assert ran.code == 1
    assert checked.err in ran.err


def test_the_service_judges_with_its_own_environment(harness: Harness) -> None:
    """A variable that the service has and the operator's shell lacks causes no error."""
    with harness.service():
        harness.file.write_text('data_dir = "data"\n[families.eth.mainnet]\n')
        assert "has no upstreams" in harness.reload().err
        harness.write("[limits]\nbatch_calls = 7")
        assert harness.reload(TOLLGATE_LIMITS__BATCH_CALLS="not a number").code == 0


def test_process_that_cannot_follow_ends_with_1(harness: Harness) -> None:
    with harness.service(str(harness.file), "--fails"):
        harness.write("[limits]\nbatch_calls = 7")
        ran = harness.reload()
    assert ran.code == 1
    assert ran.err.splitlines()[:2] == [
        f"{harness.file}: not applied by every process",
        "  limits.batch_calls: 100 -> 7",
    ]
    assert "child could not apply it" in ran.err


def test_service_without_a_file_reports_it(harness: Harness) -> None:
    with harness.service("--demo"):
        ran = harness.reload()
    assert ran.code == 1
    assert "was started without a settings file" in ran.err


@pytest.mark.parametrize("left", ["nothing", "a stale id", "an old outcome"])
def test_without_a_running_service_it_is_reported_and_no_process_is_signalled(harness: Harness, left: str) -> None:
    if left == "a stale id":
        (harness.data / NAME).write_text(f"{os.getpid()} x\n")  # SIGHUP would end this test
    elif left == "an old outcome":
        (harness.data / FILE).write_text('{"started":3,"outcomes":[]}')
    ran = harness.reload()
    assert (ran.code, ran.out) == (1, "")
    assert f"No Tollgate runs on {harness.data}" in ran.err


def test_data_folder_may_come_from_the_environment(harness: Harness, tmp_path: Path) -> None:
    with harness.service():
        elsewhere = harness.tool.run("reload", env={"TOLLGATE_DATA_DIR": str(tmp_path / "elsewhere")})
        here = harness.tool.run("reload", env={"TOLLGATE_DATA_DIR": str(harness.data)})
    assert (elsewhere.code, here.code) == (1, 0)
    assert f"No Tollgate runs on {tmp_path / 'elsewhere'}" in elsewhere.err


def test_mistake_that_hides_the_data_folder_is_reported(harness: Harness) -> None:
    with harness.service():
        harness.file.write_text("[limits]\n" + harness.file.read_text())
        ran = harness.reload()
        checked = harness.tool.run("config", "check", "--config", str(harness.file))
    assert ran.code == 1
    assert "No Tollgate runs on tollgate-data" in ran.err
    assert "unknown key `limits.data_dir`" in checked.err
    assert checked.err in ran.err


def test_service_that_starts_or_stops_is_left_alone(harness: Harness) -> None:
    lock = ServiceLock(harness.data)
    try:
        ran = harness.reload()
    finally:
        lock.close()
    assert ran.code == 1
    assert "starting or stopping" in ran.err


def test_service_in_another_container_is_left_alone(harness: Harness) -> None:
    lock = ServiceLock(harness.data)
    try:
        (harness.data / NAME).write_text(f"{os.getpid()} pid:[1]\n")
        ran = harness.reload()
    finally:
        lock.close()
    assert ran.code == 1
    assert "another container" in ran.err


def test_service_that_exits_meanwhile_is_not_waited_for(harness: Harness) -> None:
    with harness.service(str(harness.file), "--dies"):
        ran = harness.reload()
    assert ran.code == 1
    assert "ended before it reported" in ran.err


def test_silent_service_is_abandoned_at_the_deadline(harness: Harness) -> None:
    with (
        harness.service(str(harness.file), "--deaf"),
        pytest.raises(Failure, match=r"has not reported within 0\.2 s"),
    ):
        command._reload_all(harness.data, patience=0.2)


def test_many_at_once_each_have_an_outcome_that_came_after_them(harness: Harness) -> None:
    codes: list[int] = []

    with harness.service():
        harness.write("[limits]\nbatch_calls = 7")

        def reload() -> None:
            codes.append(harness.tool.process("reload", "--config", str(harness.file)).code)

        threads = [threading.Thread(target=reload) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        record = read_record(harness.data)
    assert codes == [0] * 5
    assert [outcome.generation for outcome in record.outcomes] == [1] * len(record.outcomes)
    assert [len(outcome.changed) for outcome in record.outcomes] == [0] * (len(record.outcomes) - 1) + [1]


def test_bare_signal_does_the_same(harness: Harness) -> None:
    with harness.service() as program:
        harness.write("[limits]\nbatch_calls = 7")
        program.send(signal.SIGHUP)
        eventually(lambda: read_record(harness.data).outcomes)
        assert read_record(harness.data).outcomes[0].changed == ("limits.batch_calls: 100 -> 7",)


def test_change_that_is_taken_back_is_a_change(harness: Harness) -> None:
    with harness.service():
        for calls in (7, 100, 7):
            harness.write(f"[limits]\nbatch_calls = {calls}")
            assert harness.reload().code == 0
        reloaded = [outcome.changed for outcome in read_record(harness.data).outcomes]
    assert reloaded == [
        ("limits.batch_calls: 100 -> 7",),
        ("limits.batch_calls: 7 -> 100",),
        ("limits.batch_calls: 100 -> 7",),
    ]
