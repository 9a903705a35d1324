"""What the service logs about itself: a trace never shows what stood in a variable."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest

from tollgate import log
from tollgate.log import Ration

if TYPE_CHECKING:
    pass


pytestmark = pytest.mark.usefixtures("own_logging")


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_trace_has_no_local_variables(style: str) -> None:
    output = io.StringIO()
    log.configure("info", style, output)

    def sign_in(password: str) -> None:
        raise ValueError(len(password))

    try:
        sign_in("correct horse battery")
    except ValueError:
        log.get("test").exception("it failed")
    assert "it failed" in output.getvalue()
    assert "sign_in" in output.getvalue()
    assert "correct horse" not in output.getvalue().replace('sign_in("correct horse battery")', "").replace(
        'sign_in(\\"correct horse battery\\")', ""
    )


@pytest.mark.parametrize("style", ["text", "json"])
def test_known_secrets_are_in_no_line(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_hidden", None)
    output = io.StringIO()
    log.configure("info", style, output)
    log.hide(lambda line: line.replace("swordfish", "…"))
    log.get("test").warning("it failed", why="at /v2/swordfish")
    logging.getLogger("library").warning("refused: %s", "swordfish")
    try:
        int("swordfish")
    except ValueError:
        log.get("test").exception("it broke")
    assert "swordfish" not in output.getvalue()
    assert output.getvalue().count("…") >= 3


class Foreseen(Exception):
    one_line = True


def slow() -> None:
    raise Foreseen("the store is slow")


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("how", ["itself", "in a group", "as a cause"])
def test_foreseen_error_is_one_line_wherever_it_is_logged(style: str, how: str) -> None:
    """By us, or by a server whose response had started when the store became slow."""
    output = io.StringIO()
    log.configure("info", style, output)
    try:
        try:
            slow()
        except Foreseen as error:
            if how == "in a group":
                raise ExceptionGroup("of a task group", [error]) from None
            if how == "as a cause":
                raise RuntimeError("wrapped") from error
            raise
    except Exception:
        log.get("test").exception("a request failed")
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    assert len(output.getvalue().splitlines()) == 2
    assert output.getvalue().count("Foreseen: the store is slow") == 2
    assert "Traceback" not in output.getvalue()


def test_defect_while_a_foreseen_error_is_handled_has_its_traceback() -> None:
    output = io.StringIO()
    log.configure("info", "json", output)
    try:
        try:
            slow()
        except Foreseen:
            int("x")
    except ValueError:
        log.get("test").exception("a request failed")
    assert "Traceback" in output.getvalue()


# --- The rate ----------------------------------------------------------------------------------------------


def test_of_one_message_so_many_lines_are_written_in_a_window_and_the_rest_is_counted() -> None:
    now = [0.0]
    ration = log.Ration(3, 60.0, lambda: now[0])
    assert [ration.take("a") for _ in range(5)] == [0, 0, 0, None, None]
    assert ration.take("b") == 0
    now[0] = 59.9
    assert ration.take("a") is None
    now[0] = 60.0
    assert [ration.take("a") for _ in range(4)] == [3, 0, 0, None]
    now[0] = 300.0
    assert ration.take("a") == 1
    now[0] = 400.0
    assert ration.take("a") == 0


def test_messages_that_differ_each_time_are_not_remembered_for_ever() -> None:
    ration = log.Ration(1, 60.0, lambda: 0.0)
    for number in range(5 * log.MAX_MESSAGES):
        ration.take(f"message {number}")
    assert len(ration._windows) <= log.MAX_MESSAGES


@pytest.mark.parametrize("style", ["text", "json"])
def test_flood_of_lines_is_cut_for_ours_and_for_libraries(style: str) -> None:
    output = io.StringIO()
    log.configure("info", style, output)
    for number in range(1_000):
        log.get("test").warning("a caller was odd", number=number)
        logging.getLogger("library").warning("odd: %s", number)
    log.get("other").warning("a caller was odd")
    assert output.getvalue().count("a caller was odd") == log.MAX_LINES + 1
    assert output.getvalue().count("odd: ") == log.MAX_LINES


def test_line_after_a_flood_shows_how_many_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    output, now = io.StringIO(), [0.0]
    monkeypatch.setattr(log, "Ration", lambda: Ration(2, 60.0, lambda: now[0]))
    log.configure("info", "json", output)
    for _ in range(5):
        log.get("test").warning("odd")
        logging.getLogger("library").warning("also %s", "odd")
    now[0] = 60.0
    log.get("test").warning("odd")
    logging.getLogger("library").warning("also %s", "odd")
    lines = output.getvalue().splitlines()
    assert '"left_out": 3' in lines[-2]
    assert "also odd (3 such lines were left out)" in lines[-1]


def test_lines_of_libraries_are_objects_as_ours_are() -> None:
    output = io.StringIO()
    log.configure("info", "json", output)
    broken = ValueError("broken\nin two")
    logging.getLogger("asyncio").error("odd: %s", 'a"\n{"event": "forged"}', exc_info=broken)
    (line,) = output.getvalue().splitlines()
    written = json.loads(line)
    assert written["event"] == 'odd: a"\n{"event": "forged"}'
    assert (written["part"], written["level"]) == ("asyncio", "error")
    assert written["timestamp"].endswith("Z")
    assert "ValueError: broken" in written["exception"]
