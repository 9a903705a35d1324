"""The test equipment itself: each part starts, does its work, and is gone afterwards."""

from __future__ import annotations

import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import playwright.sync_api
import pytest

from parts import need as need_module
from parts.anvil import anvil
from parts.browser import chromium, served_page
from parts.certs import make_certificate
from parts.need import need
from parts.nginx import nginx, tls_proxy
from parts.node import run_node
from parts.ports import accepts, free_port, free_ports
from parts.processes import Program, alive, answer, descendants, eventually, running
from parts.pyclients import run_python

pytestmark = pytest.mark.e2e

PARENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
signal.pause()
"""


def ready(program: Program) -> bool:
    return "ready\n" in program.lines()


# ---- need


def test_missing_part_is_skipped_with_the_command_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setitem(need_module.PARTS, "wrk", (lambda: None, "wrk, on the path"))
    with pytest.raises(pytest.skip.Exception, match=r"wrk is missing.*make test-deps"):
        need("wrk")


def test_missing_part_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setitem(need_module.PARTS, "wrk", (lambda: None, "wrk, on the path"))
    with pytest.raises(pytest.fail.Exception, match=r"wrk is missing.*make test-deps"):
        need("wrk")


def test_half_installed_folder_counts_as_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(need_module, "DEPS", tmp_path)
    (tmp_path / "web3" / "bin").mkdir(parents=True)
    (tmp_path / "web3" / "bin" / "python").touch()
    with pytest.raises(pytest.skip.Exception):
        need("web3")
    (tmp_path / "web3" / ".installed").touch()
    assert need("web3") == tmp_path / "web3" / "bin" / "python"


# ---- ports and processes


def test_free_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert not accepts(ports[0])
    with socket.create_server(("127.0.0.1", ports[0])):
        assert accepts(ports[0])


def test_eventually_gives_the_answer_or_shows_what_did_not_come_true() -> None:
    answers = iter([0, None, "yes"])
    assert eventually(lambda: next(answers)) == "yes"
    with pytest.raises(AssertionError, match=r"the moon did not come true within 0.05 s"):
        eventually(lambda: False, within=0.05, what="the moon")


def test_stopped_program_leaves_no_child(tmp_path: Path) -> None:
    with running([sys.executable, "-c", PARENT], folder=tmp_path, ready=ready) as program:
        child = int(program.lines()[0])
        assert alive(program.pid)
        assert alive(child)
    assert program.popen.returncode == -signal.SIGTERM
    assert not alive(program.pid)
    eventually(lambda: not alive(child), what="the child's end")


def test_program_that_ignores_sigterm_is_killed_and_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"did not end within 0.2 s of SIGTERM"),
        running([sys.executable, "-c", PARENT, "stubborn"], folder=tmp_path, ready=ready, grace=0.2) as program,
    ):
        child = int(program.lines()[0])
    assert program.popen.returncode == -signal.SIGKILL
    eventually(lambda: not alive(child), what="the child's end")


def test_failing_test_still_stops_its_program(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        running([sys.executable, "-c", PARENT], folder=tmp_path, ready=ready) as program,
    ):
        _ = 1 / 0
    assert not alive(program.pid)


def test_program_that_ends_early_shows_its_last_words(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('no such setting: wrokers')"]
    with (
        pytest.raises(AssertionError, match=r"(?s)ended with 1.*no such setting: wrokers"),
        running(argv, folder=tmp_path, ready=lambda _: False),
    ):
        pytest.fail("it was never ready")


def test_program_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
    seen: list[int] = []

    def never(program: Program) -> bool:
        seen.extend(int(line) for line in program.lines()[len(seen) :])
        return False

    with (
        pytest.raises(AssertionError, match=r"(?s)being ready.*within 1 s.*running"),
        running(argv, folder=tmp_path, ready=never, within=1),
    ):
        pytest.fail("it was never ready")
    assert seen
    assert not alive(seen[0])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit('refused')", "refused"),
        ("print('hello')", "not JSON"),
        ("print('[]')", "not a JSON object"),
        ("import signal; signal.pause()", "no answer within 2 s"),
    ],
)
def test_client_without_an_answer_fails_with_its_words(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        answer([sys.executable, "-c", code], folder=tmp_path, within=2)


# ---- chain and clients


def test_anvil_answers_with_its_chain_id(tmp_path: Path) -> None:
    with anvil(tmp_path) as chain:
        assert chain.call("eth_chainId") == hex(11155111)
        assert int(chain.call("eth_getBalance", chain.call("eth_accounts")[0], "latest"), 16) > 0
    assert not alive(chain.pid)


def test_javascript_client_finds_its_packages(tmp_path: Path) -> None:
    script = """
    import { formatEther } from "ethers";
    import { parseGwei } from "viem";
    import { num } from "starknet";
    const [url] = process.argv.slice(2);
    const output = { url, ether: formatEther(10n ** 18n), gwei: `${parseGwei("1")}`, felt: num.toHex(255) };
    console.log(JSON.stringify(output));
    """
    (tmp_path / "check.mjs").write_text(script)
    assert run_node("check.mjs", "http://gateway", folder=tmp_path, clients=tmp_path) == {
        "url": "http://gateway",
        "ether": "1.0",
        "gwei": "1000000000",
        "felt": "0xff",
    }
    assert not list(need("js").parent.glob("run-*"))


def test_web3_client_finds_its_package(tmp_path: Path) -> None:
    script = 'import sys, web3; print(\'{"version": "%s", "url": "%s"}\' % (web3.__version__, sys.argv[1]))'
    (tmp_path / "check.py").write_text(script)
    output = run_python("web3", "check.py", "http://gateway", folder=tmp_path, clients=tmp_path)
    assert output["version"].startswith("8.")
    assert output["url"] == "http://gateway"


def test_starknet_client_finds_its_package(tmp_path: Path) -> None:
    script = "from starknet_py.hash.address import get_checksum_address as g; print('{\"it\": \"%s\"}' % g('0x1'))"
    (tmp_path / "check.py").write_text(script)
    output = run_python("starknet", "check.py", folder=tmp_path, clients=tmp_path)
    assert output == {"it": "0x" + "1".rjust(64, "0")}


# ---- certificates, nginx, Chromium


def test_certificate_is_trusted_by_its_authority_alone(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "app.example.com")
    assert certificate.key.stat().st_mode & 0o777 == 0o600
    with served_page("<h1>kept</h1>", certificate) as port:
        trusted = certificate.client_context()
        for host in ("localhost", "127.0.0.1"):
            with urllib.request.urlopen(f"https://{host}:{port}/", context=trusted, timeout=30) as response:
                assert response.read() == b"<h1>kept</h1>"
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"https://localhost:{port}/", timeout=30)
    assert not accepts(port)


def test_nginx_speaks_http2_in_front_of_an_upstream(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with (
        served_page("behind") as upstream,
        tls_proxy(tmp_path / "nginx", certificate, f"127.0.0.1:{upstream}") as proxy,
        httpx.Client(http2=True, verify=certificate.client_context()) as client,
    ):
        response = client.get(f"https://localhost:{proxy.port}/")
        assert (response.http_version, response.status_code, response.text) == ("HTTP/2", 200, "behind")
        assert alive(proxy.pid)
    assert not alive(proxy.pid)
    assert not accepts(proxy.port)


def test_nginx_buffers_a_large_body_in_its_own_folder(tmp_path: Path) -> None:
    port = free_port()
    sink = f"""
    server {{
        listen 127.0.0.1:{port};
        client_body_in_file_only clean;
        location / {{ proxy_pass http://127.0.0.1:{port}/end; proxy_set_header X-File $request_body_file; }}
        location /end {{ return 200 $http_x_file; }}
    }}
    """
    with nginx(tmp_path, sink, port=port) as server:
        body_file = httpx.post(f"http://127.0.0.1:{port}/", content=b"x" * 200_000).text
        assert Path(body_file).parent == tmp_path / "client_body"
    assert not alive(server.pid)


PAGE = """<title>caller</title><script>
window.call = async (url) => (await fetch(url)).text();
</script>"""


def test_chromium_opens_a_page_on_a_foreign_name(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "app.example.com")
    with served_page(PAGE, certificate) as port, chromium({"app.example.com": port}) as browser:
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.goto("https://app.example.com/")
        assert page.title() == "caller"
        assert page.evaluate("location.origin") == "https://app.example.com"
        page.goto(f"https://other.example.org:{port}/")
        assert page.evaluate("location.origin") == f"https://other.example.org:{port}"


def test_chromium_enforces_cors_between_two_names(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "app.example.com")
    port = free_port()
    gateway = f"""
    server {{
        listen 127.0.0.1:{port};
        location /open {{ add_header Access-Control-Allow-Origin $http_origin; return 200 $http_origin; }}
        location /shut {{ return 200 secret; }}
    }}
    """
    with (
        nginx(tmp_path / "nginx", gateway, port=port),
        served_page(PAGE, certificate) as page_port,
        chromium({"app.example.com": page_port}) as browser,
    ):
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.goto("https://app.example.com/")
        assert page.evaluate("call", f"http://127.0.0.1:{port}/open") == "https://app.example.com"
        with pytest.raises(playwright.sync_api.Error, match="Failed to fetch"):
            page.evaluate("call", f"http://127.0.0.1:{port}/shut")


def test_chromium_and_its_driver_are_gone_afterwards() -> None:
    before = descendants(os.getpid())
    with chromium() as browser:
        assert browser.is_connected()
        started = descendants(os.getpid()) - before
        assert len(started) > 2  # the driver, the browser and what that has started
    eventually(lambda: not any(map(alive, started)), what="Chromium's end")
