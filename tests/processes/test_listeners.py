"""Listening sockets: shared among our workers, never with another program."""

import resource
import select
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tollgate.errors import StartError
from tollgate.processes import listeners
from tollgate.processes.control_proxy import ControlAddress
from tollgate.processes.listeners import MIN_PER_ADDRESS, RESERVED_DESCRIPTORS
from tollgate.settings.model import NetworkSettings, ServerSettings, Settings, UpstreamSettings

HOST = "127.0.0.1"


@pytest.fixture
def open_sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bind(stack: ExitStack, host: str, port: int, count: int) -> list[socket.socket]:
    return [stack.enter_context(each) for each in listeners.bind(host, port, count, "server.listen")]


def test_port_nought_gives_all_workers_one_free_port(open_sockets: ExitStack) -> None:
    bound = bind(open_sockets, HOST, 0, 3)
    ports = {each.getsockname()[1] for each in bound}
    assert len(bound) == 3
    assert len(ports) == 1
    assert ports != {0}


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="this system has no SO_REUSEPORT")
def test_workers_share_the_connections_of_one_port(open_sockets: ExitStack) -> None:
    bound = bind(open_sockets, HOST, 0, 2)
    assert len({each.fileno() for each in bound}) == 2
    accepted = {each.fileno(): 0 for each in bound}
    for _ in range(100):
        client = open_sockets.enter_context(socket.create_connection(bound[0].getsockname(), timeout=30))
        (ready, *_), _, _ = select.select(bound, [], [], 5)
        server, peer = ready.accept()
        open_sockets.enter_context(server)
        assert peer == client.getsockname()
        accepted[ready.fileno()] += 1
    # The kernel spreads by a hash of the addresses: each has its part, if not the same.
    assert all(accepted.values())


@pytest.mark.parametrize("shares", [False, True])
def test_port_in_use_is_refused_with_the_setting_to_change(shares: bool, open_sockets: ExitStack) -> None:
    other_program = open_sockets.enter_context(socket.socket())
    if shares:
        other_program.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other_program.bind((HOST, 0))
    other_program.listen()
    port = other_program.getsockname()[1]
    with pytest.raises(StartError, match=rf"Port {port} .*in use.*server\.listen"):
        listeners.bind(HOST, port, 2, "server.listen")


def test_second_service_on_the_same_port_is_reported(open_sockets: ExitStack) -> None:
    port = bind(open_sockets, HOST, 0, 2)[0].getsockname()[1]
    with pytest.raises(StartError, match="in use"):
        listeners.bind(HOST, port, 2, "server.listen")


def test_port_is_free_again_once_the_service_has_stopped() -> None:
    first = listeners.bind(HOST, 0, 2, "server.listen")
    port = first[0].getsockname()[1]
    client = socket.create_connection((HOST, port), timeout=30)
    for each in {*first}:
        each.close()
    client.close()
    for each in {*listeners.bind(HOST, port, 2, "server.listen")}:
        each.close()


@pytest.mark.parametrize("host", ["not-a-host.invalid", "192.0.2.1"])
def test_address_of_another_machine_is_refused_with_the_setting_to_change(host: str) -> None:
    with pytest.raises(StartError, match=r"server\.listen"):
        listeners.bind(host, 0, 1, "server.listen")


def test_url_is_one_that_a_local_client_can_use(open_sockets: ExitStack) -> None:
    (local,) = bind(open_sockets, HOST, 0, 1)
    assert listeners.url("http", local) == f"http://127.0.0.1:{local.getsockname()[1]}"
    (anywhere,) = bind(open_sockets, "0.0.0.0", 0, 1)
    assert listeners.url("https", anywhere) == f"https://127.0.0.1:{anywhere.getsockname()[1]}"


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_url_of_an_ipv6_address_has_brackets(open_sockets: ExitStack) -> None:
    try:
        (bound,) = bind(open_sockets, "::1", 0, 1)
    except StartError:
        pytest.skip("this machine has no IPv6 loopback")
    assert listeners.url("http", bound) == f"http://[::1]:{bound.getsockname()[1]}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_url_of_all_addresses_is_the_loopback(host: str) -> None:
    assert listeners.url_of("http", host, 8402) == "http://127.0.0.1:8402"


def test_workers_share_one_socket_where_ports_are_not_shared(
    open_sockets: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_REUSE_PORT", False)
    first, second = bind(open_sockets, HOST, 0, 2)
    assert first is second
    with socket.create_connection(first.getsockname(), timeout=30), first.accept()[0]:
        pass


def test_unix_socket_is_open_to_its_user_alone(tmp_path: Path) -> None:
    # What a service that was killed has left behind.
    (tmp_path / "control.sock").touch()
    with listeners.bind_unix(tmp_path, "control.sock") as bound, socket.socket(socket.AF_UNIX) as client:
        assert bound.getsockname() == str(tmp_path / "control.sock")
        assert (tmp_path / "control.sock").stat().st_mode & 0o777 == 0o600
        client.connect(bound.getsockname())


def test_unix_socket_goes_elsewhere_where_the_path_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        folder = tmp_path / ("x" * 120)
        folder.mkdir()
        address = ControlAddress(folder)
        path = Path(address.listener.getsockname())
        assert path.parent.parent == Path(short)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        address.listener.close()
        address.remove()
        assert list(Path(short).iterdir()) == []


# --- The limit on open files ---------------------------------------------------------------------------


class OpenFiles:
    """A limit on open files that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits = (1_024, 1_024)
        self.refused = False
        monkeypatch.setattr(resource, "getrlimit", lambda _which: self.limits)
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, _which: int, limits: tuple[int, int]) -> None:
        if self.refused:
            raise ValueError("not allowed to raise maximum limit")
        self.limits = limits


@pytest.fixture
def open_files(monkeypatch: pytest.MonkeyPatch) -> OpenFiles:
    return OpenFiles(monkeypatch)


def settings(connections: int = 10_000, per_address: int = 1_000, upstreams: int = 2) -> Settings:
    """Settings with two networks, whose upstreams have 50 connections each."""
    nodes = tuple(
        UpstreamSettings(name=f"n{each}", url="http://127.0.0.1:1", connections=50) for each in range(upstreams)
    )
    network = NetworkSettings(upstreams=nodes)
    return Settings(
        server=ServerSettings(connections=connections, connections_per_address=per_address),
        families={"eth": {"mainnet": network, "sepolia": network}},
    )


@pytest.mark.parametrize(
    ("files", "upstreams", "fitting"),
    [
        (1_024, 2, 1_024 - RESERVED_DESCRIPTORS - 200),
        (1_024, 0, 1_024 - RESERVED_DESCRIPTORS),
        # Upstreams get half of them at most.
        (1_024, 40, 512 - RESERVED_DESCRIPTORS),
        (100, 40, 1),
        (100_000, 2, 10_000),
        (resource.RLIM_INFINITY, 2, 10_000),
    ],
)
def test_so_many_callers_are_taken_in_that_upstreams_can_be_called_for_them(
    open_files: OpenFiles, files: int, upstreams: int, fitting: int
) -> None:
    open_files.limits = (files, resource.RLIM_INFINITY)
    assert listeners.fitting_connections(settings(upstreams=upstreams)) == fitting


@pytest.mark.parametrize(
    ("files", "of_one"),
    [(100_000, 1_000), (RESERVED_DESCRIPTORS + 800, 200), (RESERVED_DESCRIPTORS + 100, MIN_PER_ADDRESS)],
)
def test_one_address_has_a_quarter_where_few_are_taken_in(open_files: OpenFiles, files: int, of_one: int) -> None:
    open_files.limits = (files, files)
    assert listeners.fitting_connections_per_address(settings(upstreams=0)) == of_one


def test_limit_on_open_files_is_raised_as_far_as_it_may_be(open_files: OpenFiles) -> None:
    open_files.limits = (256, 4_096)
    listeners.raise_descriptor_limit()
    assert open_files.limits == (4_096, 4_096)
    open_files.limits, open_files.refused = (256, resource.RLIM_INFINITY), True
    listeners.raise_descriptor_limit()
    assert open_files.limits == (256, resource.RLIM_INFINITY), "the service starts all the same"


@pytest.mark.parametrize(("connections", "warned"), [(1_000, False), (1_001, False), (1_002, True)])
def test_operator_is_warned_where_less_than_half_of_the_callers_fit(
    open_files: OpenFiles, connections: int, warned: bool
) -> None:
    open_files.limits = (RESERVED_DESCRIPTORS + 500, 4_096)
    with capture_logs() as logged:
        listeners.warn_of_few_descriptors(settings(connections, upstreams=0))
    assert [each["connections"] for each in logged] == ([500] if warned else [])
