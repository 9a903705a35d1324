from __future__ import annotations

from typing import Any

import msgspec
import msgspec.inspect as mi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tollgate.settings.check import _within, check
from tollgate.settings.model import DEFAULT_METRICS_PORT, Settings
from tollgate.settings.schema import SettingNode, describe, in_words

UPSTREAM = {"name": "a", "url": "https://node.example.com/KEY"}

OIDC = {"client_id": "tollgate", "client_secret": "x"}


def server(**values: Any) -> dict[str, Any]:
    return {"server": values}


def network(**values: Any) -> dict[str, Any]:
    return {"families": {"eth": {"mainnet": {"upstreams": [UPSTREAM], **values}}}}


def doge(**values: Any) -> dict[str, Any]:
    """A network of a family without a catalogue."""
    return {"families": {"doge": network(**values)["families"]["eth"]}}


def upstream(**values: Any) -> dict[str, Any]:
    return network(upstreams=[{**UPSTREAM, **values}])


def texts(tree: dict[str, Any]) -> str:
    return "\n".join(problem.text for problem in check(tree))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (server(prot=1), "unknown key `server.prot`; did you mean `server.port`?"),
        ({"port": 1}, "unknown key `port`; did you mean `server.port`?"),
        ({"sever": {}}, "unknown key `sever`; did you mean `server`?"),
        ({"store": {"zzzz": 1}}, "unknown key `store.zzzz`; known here: url"),
        (
            server(port="80"),
            "`server.port` must be an integer from 0 to 65535, not a string; write it without",
        ),
        ({"cache": {"bytes": "32MB"}}, "not a string; write a plain number, without a unit"),
        ({"limits": {"request_seconds": "1.5"}}, "not a string; write it without quotes"),
        ({"whitelist": {"allow_localhost": "true"}}, "not a string; write it without quotes"),
        (server(port=True), "not a boolean"),
        (server(port=1.0), "not a number"),
        (server(port=65536), "`server.port` must be an integer from 0 to 65535, not 65536"),
        (server(workers=-1), "`server.workers` must be an integer from 0 to 256, not -1"),
        (server(connections=0), "an integer from 1 to 1_000_000_000, not 0"),
        (server(connections=16**6000), "an integer from 1 to 1_000_000_000"),
        (server(grace_seconds=float("nan")), "must be a number above 0 and at most 3600, not nan"),
        (server(grace_seconds=float("inf")), "at most 3600, not inf"),
        (server(grace_seconds=0), "above 0 and at most 3600, not 0"),
        (server(host=""), "`server.host` must be a non-empty string"),
        (server(host="a\nb"), "`server.host` has a line break or another control character"),
        ({"data_dir": "a\udcff"}, "`data_dir` has a line break or another control character"),
        ({"server": 3}, "`server` must be a table, not an integer"),
        ({"whitelist": {"allow_localhost": "yes"}}, "must be `true` or `false`, not a string"),
        ({"logging": {"level": "verbose"}}, "must be `debug`, `info`, `warning` or `error`, not 'verbose'"),
        ({"logging": {"level": "info\n"}}, "`logging.level` has a line break"),
        (server(trusted_proxies="10.0.0.1"), "must be a list of strings, not a string; write it in square"),
        (server(trusted_proxies=["10.0.0.1", 5]), "must be a list of strings: entry 2 is an integer"),
        (server(trusted_proxies=["proxy"]), "has 'proxy', no IP address or network"),
        (server(trusted_proxies=["0.0.0.0/0"]), "callers could choose their address"),
        (server(tls_key="k"), "`server.tls_key` is set without `server.tls_certificate`"),
        (server(tls_certificate="c"), "`server.tls_certificate` is set without `server.tls_key`"),
        (server(port=9000, metrics_port=9000), "`server.metrics_port` is the same as `server.port`"),
        (server(port=8403), "`server.metrics_port` is the same as `server.port`"),
        (server(base_url="rpc.example.com"), "`server.base_url`"),
        (server(base_url="ftp://rpc.example.com"), "must begin with http:// or https://"),
        (server(base_url="https://rpc.example.com/"), "must not have a path, a query or a trailing slash"),
        (server(base_url="https://rpc.example.com?a"), "must not have a path, a query or a trailing slash"),
        (server(base_url="https://rpc.example.com?"), "must not have a path, a query or a trailing slash"),
        (server(base_url="https://a@rpc.example.com"), "has user-info"),
        ({"whitelist": {"resolvers": ["dns.example"]}}, "has 'dns.example', no DNS server"),
        ({"whitelist": {"resolvers": ["1.1.1.1:99999"]}}, "has '1.1.1.1:99999', no DNS server"),
        ({"accounts": {"sign_up": "maybe"}}, "must be `closed`, `invited` or `open`, not 'maybe'"),
        ({"oidc": {"issuer": "http://login.example.com", **OIDC}}, "`oidc.issuer` must begin with https://"),
        ({"oidc": {"issuer": "https://login.example.com?a=b", **OIDC}}, "must not have a query or a fragment"),
        ({"oidc": {"issuer": "https://", **OIDC}}, "`oidc.issuer` has no host"),
        (
            {"oidc": {"issuer": "https://login.example.com", "client_id": "a"}},
            "`oidc.issuer` is set without `oidc.client_secret`",
        ),
        ({"mail": {"host": "smtp.example.com"}}, "`mail.host` is set without `mail.sender`"),
        ({"mail": {"username": "ada"}}, "`mail.username` is set without `mail.password`"),
        ({"mail": {"security": "ssl"}}, "must be `starttls`, `tls` or `none`, not 'ssl'"),
        ({"telemetry": {"traces_url": "127.0.0.1:4318"}}, "`telemetry.traces_url` has no"),
        ({"telemetry": {"traces_url": "http://127.0.0.1:4318"}}, "`telemetry.traces_url` has no path"),
        ({"telemetry": {"traces_url": "grpc://127.0.0.1/v1/traces"}}, "begins with neither http:// nor https://"),
        ({"telemetry": {"traces_headers": {"Content-Type": "a"}}}, "is set by the gateway itself: remove it"),
        ({"telemetry": {"sample_ratio": 1.5}}, "`telemetry.sample_ratio` must be"),
        ({"store": {"url": "control.db"}}, "`store.url` is not a database URL"),
        ({"secrets": {"pepper": "x" * 31}}, "`secrets.pepper` is too short: give 32 characters or more"),
        ({"families": {"eth": {}}}, "families.eth has no networks: add [[families.eth.mainnet.upstreams]]"),
        ({"families": {"eth": 1}}, "`families.eth` must be a table, not an integer"),
        ({"families": {"Eth": {"mainnet": {"upstreams": [UPSTREAM]}}}}, "`families.Eth` cannot be part of"),
        ({"families": {"eth": {"": {"upstreams": [UPSTREAM]}}}}, '`families.eth.""` cannot be part of'),
        ({"families": {"eth": {"a" * 33: {"upstreams": [UPSTREAM]}}}}, "cannot be part of an address"),
        (
            {"families": {"eth": {"mainnet": {}}}},
            "families.eth.mainnet has no upstreams: add [[families.eth.mainnet.upstreams]] with name and url",
        ),
        (network(upstreams=[]), "families.eth.mainnet has no upstreams"),
        (network(upstreams=UPSTREAM), "not a table; write [[families.eth.mainnet.upstreams]]"),
        (network(upstreams=[{"url": "http://a"}]), "`families.eth.mainnet.upstreams[0]` has no `name`"),
        (network(upstreams=[{"name": "a"}]), "`families.eth.mainnet.upstreams[0]` has no `url`"),
        (network(upstreams=[UPSTREAM, UPSTREAM]), "has a second upstream named 'a'"),
        (doge(strict=True), "`families.doge.mainnet.strict` refuses every method, as the family doge has no"),
        (doge(strict=True), "remove it, or name methods in `families.doge.mainnet.open_methods`"),
        (network(allow_methods=["eth call"]), "has 'eth call': write a method such as eth_call"),
        (network(allow_methods=[""]), "has ''"),
        (network(deny_methods=["debug_[a-z]"]), "has 'debug_[a-z]'"),
        (network(deny_methods=["**"]), "has '**'"),
        (upstream(name="a b"), "must be 1 to 64 letters, digits, `.`, `_` or `-`, not 'a b'"),
        (upstream(url="ws://node"), "must be a URL that begins with `http://` or `https://`"),
        (upstream(url="http:///path"), "has no host"),
        (upstream(url="http://:80/"), "has no host"),
        (upstream(url="http://user@node/"), "has user-info before the host"),
        (upstream(url="http://node/#part"), "has a fragment"),
        (upstream(url="http://node/#"), "has a fragment"),
        (upstream(url="http://node:0/"), "has port 0"),
        (upstream(url="http://node:99999/"), "has a host or port that is not valid"),
        (upstream(url="http://[::1/"), "has a host or port that is not valid"),
        (upstream(url="http://no de/"), "has a space"),
        (upstream(url="http://nöde/"), "non-ASCII character"),
        ({"whitelist": {"resolvers": ["1.1.1.1:0"]}}, "no DNS server"),
        ({"whitelist": {"resolvers": ["1.1.1.1:65536"]}}, "no DNS server"),
        ({"shared": {"url": "http://cache:6379"}}, "is not the address of a Valkey or Redis server"),
        ({"shared": {"url": "valkey:///0"}}, "is not the address of a Valkey or Redis server"),
        ({"shared": {"url": "valkey://cache:6379/ 0"}}, "is not the address of a Valkey or Redis server"),
        ({"shared": {"url": "valkey://cache:99999/"}}, "has a host or port that is not valid"),
        ({"shared": {"url": "valkey://cache/db"}}, "has a path that is no number of a database"),
        (upstream(ws_url="http://node"), "must be a URL that begins with `ws://` or `wss://`"),
        (upstream(ws_url="ws:///path"), "has no host"),
        (upstream(ws_url="wss://user@node/"), "has user-info before the host"),
        (upstream(ws_url="wss://node:0/"), "has port 0"),
        (upstream(allow_methods=["eth call"]), "`families.eth.mainnet.upstreams[0].allow_methods` has 'eth call'"),
        (upstream(deny_methods=[""]), "`families.eth.mainnet.upstreams[0].deny_methods` has ''"),
        (upstream(headers={"a b": "x"}), "the name of header 1"),
        (upstream(headers={"X-Key": "a\r\nb"}), "the value of `X-Key`"),
        (upstream(headers={"X-Key": 1}), "must be a table of strings: entry 1 is an integer"),
        (upstream(headers={"X-Key": "a", "x-key": "b"}), "`x-key` is written twice"),
        (upstream(headers={"Content-Length": "1"}), "`Content-Length` is set by the gateway itself"),
    ],
)
def test_a_problem_is_named_with_its_key_and_what_to_do(tree: dict[str, Any], message: str) -> None:
    assert message in texts(tree)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        server(port=0, metrics_port=0),
        server(grace_seconds=5),
        server(base_url="https://rpc.example.com:8443"),
        server(base_url="http://[::1]:8402"),
        server(trusted_proxies=["10.1.2.3/8", "::1", "127.0.0.1"]),
        server(tls_certificate="c", tls_key="k"),
        {"whitelist": {"resolvers": ["1.1.1.1", "127.0.0.1:5353", "::1", "[::1]:53"]}},
        {"whitelist": {"resolvers": ["1.1.1.1:1", "1.1.1.1:65535"]}},
        {"shared": {"url": ""}},
        {"shared": {"url": "valkey://cache.example.com:6379/0"}},
        {"oidc": {"issuer": ""}},
        {"oidc": {"issuer": "https://login.example.com/realm", **OIDC}},
        {"oidc": {"issuer": "http://127.0.0.1:9000", **OIDC}},
        {"mail": {"host": "smtp.example.com", "sender": "toll@example.com"}},
        {"secrets": {"pepper": "x" * 32}},
        {"store": {"url": "postgresql+psycopg://user:p@ss@host/db"}},
        network(allow_methods=["eth_*", "net_version", "*"]),
        network(strict=True),
        doge(strict=False),
        doge(strict=True, open_methods=["get*"]),
        doge(strict=True, domain_methods=["getblockcount"]),
        upstream(url="http://127.0.0.1:8545"),
        upstream(ws_url=""),
        upstream(ws_url="wss://node.example.com/v1/KEY?a=b"),
        upstream(allow_methods=["eth_*"], deny_methods=["debug_*"]),
        upstream(url="https://node.example.com/v1/KEY?a=b"),
        upstream(headers={"Authorization": "Bearer KEY"}, priority=1, timeout_seconds=0.5),
    ],
)
def test_good_settings_have_no_problem(tree: dict[str, Any]) -> None:
    assert check(tree) == []


def test_only_what_would_be_right_without_quotes_is_advised_to_lose_them() -> None:
    assert "quotes" not in texts({"whitelist": {"allow_localhost": "yes"}})


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "tree",
    [
        {"secrets": {"pepper": SECRET}},
        {"secrets": {"pepper": [SECRET]}},
        {"secrets": {"pepper": f"{SECRET}\n"}},
        {"store": {"url": SECRET}},
        upstream(url=SECRET),
        upstream(ws_url=SECRET),
        upstream(url=f"http://u:{SECRET}@node/"),
        upstream(url=f"http://node/{SECRET}#"),
        upstream(url=f"http://node:{SECRET}/"),
        upstream(url=f"http://node/{SECRET} "),
        upstream(url=[SECRET]),
        upstream(headers={f"Authorization: {SECRET}": "x"}),
        upstream(headers={f"Authorization: {SECRET}": 1}),
        upstream(headers={"Authorization": f"{SECRET}\n"}),
        upstream(headers=SECRET),
    ],
)
def test_a_problem_never_quotes_a_secret(tree: dict[str, Any]) -> None:
    assert check(tree)
    assert SECRET not in texts(tree)


def test_a_value_is_quoted_unless_it_is_long() -> None:
    for value in (2**59, "x" * 58):
        assert texts(server(port=value) if isinstance(value, int) else {"logging": {"level": value}}).endswith(
            f", not {value!r}"
        )
    for value in (2**60, "x" * 59):
        assert "not" not in texts(server(port=value) if isinstance(value, int) else {"logging": {"level": value}})


def test_bounds_are_written_as_they_can_be_copied() -> None:
    words = [in_words(SettingNode(mi.IntType(ge=limit))) for limit in (99_999, 100_000)]
    assert words == ["integer at least 99999", "integer at least 100_000"]


def test_bounds_are_outside_or_inside_as_they_are_written() -> None:
    for kind, inside in (
        (mi.IntType(gt=5), [6]), (mi.IntType(ge=5), [5, 6]), (mi.IntType(lt=5), [4]), (mi.IntType(le=5), [4, 5]),
    ):  # fmt: skip
        assert [value for value in (4, 5, 6) if _within(kind, value)] == inside


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        (server(port=1, metrics_port=1), "metrics_port"),
        (server(port=DEFAULT_METRICS_PORT), "port"),
    ],
)
def test_ports_that_are_the_same_are_named_where_one_is_written(tree: dict[str, Any], key: str) -> None:
    assert [problem.path for problem in check(tree)] == [("server", key)]


def test_a_problem_of_a_type_is_the_only_one_of_its_setting() -> None:
    assert len(check({"oidc": {"issuer": 5}})) == len(check({"shared": {"url": 5}})) == 1


def test_all_problems_are_found_in_one_pass() -> None:
    tree = {**server(port="x", workers=999, prot=1), **upstream(url="x", priority=-1)}
    assert len(check(tree)) == 5


ANY_VALUE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["https://a.example", "10.0.0.0/8", "info", "eth_call"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=3,
)
KEYS = st.sampled_from([row.key for row in describe() if "<" not in row.key])
FIELDS = st.sampled_from(["upstreams", "allow_methods", "deny_methods", "other"])


@settings(deadline=None)
@given(st.dictionaries(KEYS, ANY_VALUE, max_size=4), st.dictionaries(FIELDS, ANY_VALUE), ANY_VALUE)
def test_what_passes_the_check_is_accepted_by_the_definitions(
    values: dict[str, Any], fields: dict[str, Any], one: Any
) -> None:
    tree: dict[str, Any] = {
        "families": {"eth": {"mainnet": {"upstreams": [{**UPSTREAM, "headers": one}], **fields}}}
    }
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        (tree.setdefault(table, {}) if table else tree)[name] = value
    if not check(tree):
        msgspec.convert(tree, Settings)
