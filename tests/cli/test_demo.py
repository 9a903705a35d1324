"""What `tollgate demo` prints when it cannot start."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tollgate.cli.demo import in_options
from tollgate.errors import StartError
from tollgate.processes.listeners import bind

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port: int = listener.getsockname()[1]
        yield port


@pytest.mark.parametrize(
    ("message", "in_words_of_the_demo"),
    [
        ("choose one above 1023 for server.metrics_port, or", "choose one above 1023 for --metrics-port, or"),
        ("server.host: 'x' is not an address of this machine.", "--host: 'x' is not an address of this machine."),
    ],
)
def test_an_error_of_the_start_names_options_and_no_settings(message: str, in_words_of_the_demo: str) -> None:
    assert str(in_options(StartError(message))) == in_words_of_the_demo


def test_a_second_demo_names_the_option_for_another_port(taken: int) -> None:
    with pytest.raises(StartError) as refused:
        bind("127.0.0.1", taken, 1, "server.port")
    assert str(in_options(refused.value)).endswith("is in use: stop what listens there, or set another --port.")


def test_an_error_that_names_no_setting_of_the_demo_stays_itself() -> None:
    error = StartError("Another Tollgate runs on folder: stop it, or set another data_dir.")
    assert in_options(error) is error
