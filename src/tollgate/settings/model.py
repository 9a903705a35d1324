"""Settings: what an operator may set, each with its default, its bounds and its help text.

Owns the shape of the settings and nothing else: values only, no file, no environment, no side effect. How a
TOML file and `TOLLGATE_…` variables become a `Settings` is in `settings/file.py`. The reference page
`docs/reference/settings.md` is generated from these definitions.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.inspect import Metadata, StructType, type_info

from tollgate.api.usage import Plan
from tollgate.core.pricing import Price

DEFAULT_PORT = 8402
DEFAULT_METRICS_PORT = 8403

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Hours = Annotated[int, Meta(ge=1, le=8760)]
Days = Annotated[int, Meta(ge=1, le=365)]
Text = Annotated[str, Meta(min_length=1)]


def Help(text: str) -> Meta:  # noqa: N802 - reads as an annotation
    return Meta(description=text)


def Secret(text: str) -> Meta:  # noqa: N802 - reads as an annotation
    """Attach the help text of a setting that is masked wherever it is shown."""
    return Meta(description=text, extra={"secret": True})


def Location(text: str) -> Meta:  # noqa: N802 - reads as an annotation
    """Attach the help text of a setting that is a path, relative to the file it is written in."""
    return Meta(description=text, extra={"location": True})


def Form(pattern: str, words: str) -> Meta:  # noqa: N802 - reads as an annotation
    """Bind a string to a pattern, with a text for operators about what is accepted."""
    return Meta(pattern=pattern, extra={"form": words})


def Choice(*names: str) -> Meta:  # noqa: N802 - reads as an annotation
    """Bind a string to a few values."""
    *others, last = (f"`{name}`" for name in names)
    return Form(rf"^({'|'.join(names)})\Z", f"{', '.join(others)} or {last}")


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of settings. Its repr hides secrets, because a repr ends up in logs and tracebacks."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        hidden = _secret_fields(type(self))
        shown = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, "…" if value and name in hidden else value) for name, value in shown]

    def __repr__(self) -> str:
        words = (f"{name}={'…' if value == '…' else repr(value)}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({', '.join(words)})"


@cache
def _secret_fields(section: type[Section]) -> frozenset[str]:
    info = type_info(section)
    assert isinstance(info, StructType)  # noqa: S101 - narrows the type
    return frozenset(
        field.name
        for field in info.fields
        if isinstance(field.type, Metadata) and (field.type.extra or {}).get("secret")
    )


class ServerSettings(Section, frozen=True):
    """Listeners and processes."""

    host: Annotated[Text, Help("Address the public listener binds to.")] = "127.0.0.1"
    port: Annotated[Port, Help("Port of the public listener; 0 picks a free one.")] = DEFAULT_PORT
    base_url: Annotated[
        str, Help("Public address of the service, as callers see it. Empty: made from host and port.")
    ] = ""
    workers: Annotated[int, Meta(ge=0, le=256), Help("Worker processes; 0 means one for each core.")] = 0
    metrics_host: Annotated[Text, Help("Address of the Prometheus listener (`/metrics`).")] = "127.0.0.1"
    metrics_port: Annotated[Port, Help("Port of the Prometheus listener; 0 picks a free one.")] = (
        DEFAULT_METRICS_PORT
    )
    tls_certificate: Annotated[str, Location("PEM file with the certificate chain. Empty: plain HTTP.")] = ""
    tls_key: Annotated[str, Location("PEM file with the private key of `tls_certificate`.")] = ""
    trusted_proxies: Annotated[
        tuple[str, ...],
        Help("Addresses or networks whose `X-Forwarded-For`, `-Host` and `-Proto` are trusted. Empty: none."),
    ] = ()
    grace_seconds: Annotated[
        Seconds, Help("On stop: how long requests that were read whole may take to be answered.")
    ] = 30.0
    keep_alive_seconds: Annotated[Seconds, Help("How long an idle connection of a caller is kept.")] = 75.0
    read_seconds: Annotated[Seconds, Help("How long a caller may take to send one whole request.")] = 30.0
    connections: Annotated[
        Positive,
        Help(
            "Open connections of callers, WebSockets among them, for each worker. Fewer where the system allows "
            "fewer open files."
        ),
    ] = 20_000
    connections_per_address: Annotated[
        Positive,
        Help(
            "Open connections of one client address (IPv6: /64), for each worker (503 `overloaded`), at most a "
            "quarter of what fits; a /56 has twice, a /48 four times as many, and a /24 or /48 no more than it "
            "leaves free. Addresses of `trusted_proxies` have no such bound."
        ),
    ] = 2_000


class LimitSettings(Section, frozen=True):
    """Bounds on what callers may send and how often."""

    body_bytes: Annotated[Positive, Help("Largest request body (413 `body_too_large`).")] = 1_048_576
    batch_calls: Annotated[Positive, Help("Most calls in one batch (413 `batch_too_large`).")] = 100
    response_bytes: Annotated[Positive, Help("Largest answer taken from an upstream.")] = 67_108_864
    request_seconds: Annotated[
        Seconds, Help("Deadline for one request, all attempts together (504 `upstream_timeout`).")
    ] = 30.0
    in_flight: Annotated[
        Positive, Help("Requests in progress in one worker before it sheds load (503 `overloaded`).")
    ] = 4_096
    buffer_bytes: Annotated[
        Positive,
        Help(
            "Bytes that one worker holds in large bodies, a quarter of them for one client address (but not for "
            "`trusted_proxies`); beyond that it sheds load (503 `overloaded`)."
        ),
    ] = 268_435_456
    domain_address_per_minute: Annotated[
        Positive,
        Help(
            "Requests a minute for one client address (IPv6: one /64) on whitelisted domains. A /56 has twice, a "
            "/48 four times as many, up to half of the domain's; a /24 has half of them once half is used."
        ),
    ] = 600
    domain_per_minute: Annotated[Positive, Help("Requests a minute for one whitelisted domain.")] = 6_000
    misses_per_second_per_address: Annotated[
        Positive,
        Help(
            "Look-ups a second of unknown tokens and domains, for one client address; for wider prefixes as "
            "`domain_address_per_minute`."
        ),
    ] = 10
    misses_per_second: Annotated[
        Positive, Help("Look-ups a second of unknown tokens and domains, for the whole machine.")
    ] = 500
    api_per_minute: Annotated[
        Positive, Help("Requests a minute to the management API with one credential; searches count for several.")
    ] = 1_200
    api_address_per_minute: Annotated[
        Positive,
        Help(
            "Requests a minute to the management API and the console for one client address (IPv6: one /64); a "
            "/56 has twice, a /48 four times as many."
        ),
    ] = 6_000
    limit_slots: Annotated[
        int,
        Meta(ge=1_024, le=16_777_216),
        Help("Callers whose rates are tracked at the same time; the least recently used one is evicted."),
    ] = 65_536


class DirectorySettings(Section, frozen=True):
    """The copy of tokens and domains that each worker holds in memory."""

    entries: Annotated[Positive, Help("Tokens and domains held in memory, for each worker.")] = 20_000
    refresh_seconds: Annotated[
        float, Meta(gt=0, le=0.5), Help("How often a worker checks the store for changed grants.")
    ] = 0.2
    stale_seconds: Annotated[
        Seconds, Help("How long known grants are honoured while the store cannot be reached.")
    ] = 600.0
    unknown_seconds: Annotated[Seconds, Help("How long a worker remembers that a token is unknown.")] = 5.0


class StoreSettings(Section, frozen=True):
    """Where teams, tokens and domains are kept; with PostgreSQL also logs, usage and invoices."""

    url: Annotated[
        str,
        Secret(
            "`postgresql://user:password@host/database` for several nodes, or `sqlite:///file`. "
            "Empty: `control.db` in the data folder (SQLite)."
        ),
    ] = ""


class ValkeySettings(Section, frozen=True):
    """What several gateway nodes share. Off while `url` is empty: each node has limits and a cache of its own."""

    url: Annotated[
        str,
        Secret(
            "`valkey://host:6379/0` or `redis://…`, `valkeys://` or `rediss://` with TLS, `user:password@` before "
            "the host. Nodes on one address keep the rate limits of callers together, and share answers about "
            "final blocks of networks whose `chain_id` is set."
        ),
    ] = ""


class SecretSettings(Section, frozen=True):
    """Server-side secrets."""

    pepper: Annotated[
        str,
        Secret("Key under which tokens are hashed, 32 characters or more. Empty: made once, in the data folder."),
    ] = ""
    previous_pepper: Annotated[
        str,
        Secret("The previous pepper, while `pepper` replaces it: hashes made with it stay valid."),
    ] = ""
    factor_key: Annotated[
        str,
        Secret(
            "Key under which second factors are sealed, 32 characters or more. Empty: one is derived from the "
            "pepper. It is in no backup: keep a copy elsewhere."
        ),
    ] = ""
    factor_key_file: Annotated[
        str,
        Location("File with that key, outside of the data folder, that only its owner can read. Empty: none."),
    ] = ""


class WhitelistSettings(Section, frozen=True):
    """Domains that may call without a token."""

    allow_localhost: Annotated[
        bool, Help("Let `http://localhost` be whitelisted, for development; never on a public service.")
    ] = False
    resolvers: Annotated[
        tuple[str, ...],
        Help("DNS servers for proofs of ownership, `address` or `address:port`. Empty: the system's."),
    ] = ()
    allow_private_addresses: Annotated[
        bool, Help("Let `/.well-known/tollgate.txt` be fetched from private, loopback and link-local addresses.")
    ] = False
    well_known_port: Annotated[Port, Help("Port from which `/.well-known/tollgate.txt` is fetched.")] = 443


class AccountSettings(Section, frozen=True):
    """People: how they get an account and how long they stay signed in."""

    sign_up: Annotated[
        str,
        Choice("closed", "invited", "open"),
        Help(
            "Who may make an account: the operator's guests alone, also those of teams, or anyone. With `[mail]` "
            "set, who signs up proves the address by a link."
        ),
    ] = "invited"
    session_hours: Annotated[Hours, Help("How long a browser stays signed in.")] = 12
    access_minutes: Annotated[
        int, Meta(ge=1, le=1440), Help("Lifetime of an access token of the command-line tool.")
    ] = 60
    refresh_days: Annotated[Days, Help("How long the command-line tool stays logged in without being used.")] = 90
    invitation_days: Annotated[Days, Help("How long an invitation can be accepted.")] = 7
    reset_minutes: Annotated[int, Meta(ge=5, le=10_080), Help("How long a link to reset a password works.")] = 60
    device_minutes: Annotated[
        int, Meta(ge=1, le=60), Help("How long a code of `tollgate auth login` can be approved.")
    ] = 15
    device_interval: Annotated[
        int, Meta(ge=1, le=60), Help("Seconds that `tollgate auth login` waits between two polls.")
    ] = 5
    audit_days: Annotated[int, Meta(ge=1, le=36_500), Help("How long entries of the audit log are kept.")] = 400
    teams_per_account: Annotated[Positive, Help("Teams that one account may own.")] = 20
    members_per_team: Annotated[Positive, Help("Members and open invitations of one team.")] = 500
    tokens_per_team: Annotated[Positive, Help("API tokens of one team.")] = 1_000
    domains_per_team: Annotated[Positive, Help("Whitelist entries of one team.")] = 1_000


class CacheSettings(Section, frozen=True):
    """Answers of upstreams kept in memory."""

    bytes: Annotated[
        int, Meta(ge=0, le=1 << 40), Help("Memory for answers, for each worker; 0 turns the cache off.")
    ] = 33_554_432
    entry_bytes: Annotated[Positive, Help("Largest answer that is kept.")] = 1_048_576


class HealthSettings(Section, frozen=True):
    """Watching upstreams: one process for the whole machine."""

    probe_seconds: Annotated[
        float,
        Meta(ge=0.05, le=60),
        Help("How often the head of an upstream is checked that answers calls and has no WebSocket feed."),
    ] = 0.5
    idle_probe_seconds: Annotated[
        float,
        Meta(ge=0.05, le=600),
        Help(
            "For an upstream with a WebSocket feed (`ws_url`), or without calls for half a minute: the pause for "
            "each call of a check. 5.5 means at most 11 calls a minute."
        ),
    ] = 5.5
    timeout_seconds: Annotated[float, Meta(gt=0, le=60), Help("Timeout of such a check.")] = 3.0


class WebSocketSettings(Section, frozen=True):
    """Connections for subscriptions."""

    connections: Annotated[
        Positive, Help("Open WebSockets, for each worker; one team has at most as many as are left free.")
    ] = 5_000
    connections_per_caller: Annotated[
        Positive,
        Help(
            "Open WebSockets of one token, or of one client address (IPv6: one /64) on a domain, for each worker. "
            "A /56 has twice, a /48 four times as many, and a /24 or /48 no more than it leaves free."
        ),
    ] = 500
    connections_per_domain: Annotated[
        Positive, Help("Open WebSockets of one domain, all addresses together, for each worker.")
    ] = 2_500
    subscriptions: Annotated[Positive, Help("Subscriptions of one connection.")] = 100
    subscriptions_per_caller: Annotated[
        Positive,
        Help(
            "Subscriptions of one caller, as `connections_per_caller` counts them, for each worker; a team has "
            "five times as many."
        ),
    ] = 2_000
    filter_terms_per_caller: Annotated[
        Positive,
        Help(
            "Addresses, topics and keys in the filters of one caller's subscriptions, for each worker; a team has "
            "five times as many."
        ),
    ] = 20_000
    queue_bytes: Annotated[
        Positive, Help("Bytes that wait for one slow client; beyond that its connection is closed.")
    ] = 4_194_304


class LedgerSettings(Section, frozen=True):
    """Recording of requests: from a worker's spool to logs and usage."""

    segment_bytes: Annotated[
        int,
        Meta(ge=65_536, le=1_073_741_824),
        Help("Size at which a spool file is left to the collector."),
    ] = 16_777_216
    segment_seconds: Annotated[Seconds, Help("Age at which a spool file is left to the collector.")] = 10.0
    sync_seconds: Annotated[
        Seconds, Help("How often records are forced to the disk: what a power cut may take.")
    ] = 1.0
    held_bytes: Annotated[
        Positive,
        Help("Records that one worker holds in memory while the disk refuses them; then 503 `overloaded`."),
    ] = 67_108_864
    log_days: Annotated[
        int,
        Meta(ge=1, le=3_650),
        Help("How long request logs are kept; usage totals are kept for ever."),
    ] = 30
    show_upstreams: Annotated[
        bool,
        Help(
            "Show teams the names of upstreams in their request logs and in `X-Tollgate-Upstream`. Otherwise logs "
            "have `upstream 1`, `upstream 2`, numbered in each entry, and the header is left out; operators "
            "always see names in logs."
        ),
    ] = True


class PricingSettings(Section, frozen=True):
    """What requests cost. Months are calendar months of UTC."""

    plan: Annotated[
        str,
        Choice("per_request", "per_started_million"),
        Help("Whether each request beyond the free ones is charged, or each started million of them."),
    ] = "per_request"
    free_requests: Annotated[
        int,
        Meta(ge=0, le=1_000_000_000_000),
        Help("Requests of a month that are free, for all teams of one account together."),
    ] = 1_000_000
    micros_per_million: Annotated[
        int,
        Meta(ge=0, le=1_000_000_000_000),
        Help("Price of a further million requests, in millionths of a dollar."),
    ] = 5_000_000
    allow_private_webhooks: Annotated[
        bool, Help("Let webhooks of alerts be sent to private, loopback and link-local addresses.")
    ] = False
    upstream_calls: Annotated[
        bool,
        Help(
            "Bill each upstream call that one request needs: parts of a wide `eth_getLogs`, blocks of a "
            "subscription that begins in the past, polls of a transaction's status. Limits count them anyway."
        ),
    ] = True
    grace_hours: Annotated[
        int,
        Meta(ge=0, le=744),
        Help("After the end of a month: how long late records still count before its invoices are final."),
    ] = 48
    seller: Annotated[str, Help("Who sends the invoices: name and address, with line ends between.")] = ""
    seller_tax_number: Annotated[str, Help("The tax number that is printed on invoices.")] = ""

    def price(self) -> Price:
        """The price as arithmetic."""
        return Price(Plan(self.plan), self.free_requests, self.micros_per_million)


class StripeSettings(Section, frozen=True):
    """Reporting final invoices to Stripe. Off while `api_key` is empty."""

    api_key: Annotated[str, Secret("Secret or restricted key that may write customers and invoice items.")] = ""
    api_url: Annotated[
        str,
        Form(r"^https?://", "a URL that begins with `http://` or `https://`"),
        Help("Address of Stripe's API; another one for tests."),
    ] = "https://api.stripe.com"


class OidcSettings(Section, frozen=True):
    """Signing in with an OpenID Connect provider. Off while `issuer` is empty."""

    issuer: Annotated[str, Help("The provider's issuer URL, without `/.well-known/openid-configuration`.")] = ""
    name: Annotated[Text, Help("What the button on the sign-in page calls the provider.")] = "OpenID Connect"
    client_id: Annotated[str, Help("Client id that the provider gave to this service.")] = ""
    client_secret: Annotated[str, Secret("Client secret that belongs to `client_id`.")] = ""
    scopes: Annotated[Text, Help("Requested scopes.")] = "openid email profile"


class MailSettings(Section, frozen=True):
    """Sending mail. Off while `host` is empty: links are printed instead."""

    host: Annotated[str, Help("SMTP server.")] = ""
    port: Annotated[Port, Help("Port of the SMTP server.")] = 587
    security: Annotated[
        str,
        Choice("starttls", "tls", "none"),
        Help("How the connection is protected."),
    ] = "starttls"
    username: Annotated[str, Help("User name, if the server wants one.")] = ""
    password: Annotated[str, Secret("Password of `username`.")] = ""
    sender: Annotated[str, Help("Address that mail comes from.")] = ""


class LoggingSettings(Section, frozen=True):
    """Logs on standard error."""

    level: Annotated[
        str,
        Choice("debug", "info", "warning", "error"),
        Help("The least severe lines that are written."),
    ] = "info"
    format: Annotated[
        str,
        Choice("auto", "text", "json"),
        Help("How lines are written; `auto` means text on a terminal, JSON elsewhere."),
    ] = "auto"


class TelemetrySettings(Section, frozen=True):
    """Traces for OpenTelemetry. Off while `traces_url` is empty; metrics are always there."""

    traces_url: Annotated[
        str,
        Help(
            "Where spans are sent by OTLP over HTTP (JSON): `http://127.0.0.1:4318/v1/traces`. Empty: no traces."
        ),
    ] = ""
    traces_headers: Annotated[dict[str, str], Secret("Headers to send with them, such as `Authorization`.")] = {}
    sample_ratio: Annotated[
        float,
        Meta(ge=0, le=1),
        Help("Share of the requests that are traced, of those whose `traceparent` is not followed."),
    ] = 0.01
    follow_callers: Annotated[
        bool,
        Help(
            "Take over a caller's `traceparent`: its trace, and whether it is sampled. Callers then decide what "
            "is traced: only where they are your own. Otherwise it is ignored."
        ),
    ] = False
    propagate: Annotated[bool, Help("Send `traceparent` and `tracestate` to upstreams.")] = True
    service_name: Annotated[Text, Help("What spans name as `service.name`.")] = "tollgate"


class UpstreamSettings(Section, frozen=True):
    """A node or provider that answers for a network."""

    name: Annotated[
        str,
        Form(r"^[A-Za-z0-9._-]{1,64}\Z", "1 to 64 letters, digits, `.`, `_` or `-`"),
        Help("Name in metrics and logs; unique in its network."),
    ]
    url: Annotated[
        str,
        Form(
            r"^(https?|alchemy|infura|quicknode|drpc|ankr|publicnode)://",
            "a URL that begins with `http://` or `https://`, or a provider's shorthand such as `alchemy://KEY`",
        ),
        Secret(
            "Address of its JSON-RPC endpoint, or a shorthand: `alchemy://KEY`, `infura://KEY`, "
            "`quicknode://NAME/KEY`, `drpc://KEY`, `ankr://KEY`, `publicnode://`."
        ),
    ]
    ws_url: Annotated[
        str,
        Form(r"^(wss?://.*)?\Z", "a URL that begins with `ws://` or `wss://`, or nothing"),
        Secret(
            "Address of its WebSocket endpoint. New heads are then known at once; pending transactions need it."
        ),
    ] = ""
    headers: Annotated[dict[str, str], Secret("Headers to send, such as `Authorization`.")] = {}
    priority: Annotated[
        int,
        Meta(ge=0, le=1000),
        Help("Lower ones are used first; others when those are out of rotation."),
    ] = 0
    weight: Annotated[
        int, Meta(ge=1, le=100), Help("Its share of the calls among upstreams of the same priority.")
    ] = 1
    requests_per_second: Annotated[
        int,
        Meta(ge=0, le=1_000_000),
        Help("Calls a second that it is sent, by the whole machine; 0: as many as there are."),
    ] = 0
    allow_methods: Annotated[
        tuple[str, ...], Help("Methods that may be sent to it, `*` as a wildcard. Empty: all but the denied.")
    ] = ()
    deny_methods: Annotated[tuple[str, ...], Help("Methods that are never sent to it, `*` as a wildcard.")] = ()
    archive: Annotated[
        bool, Help("Whether it holds the state of all blocks. Otherwise calls about old state go to others first.")
    ] = True
    batch_calls: Annotated[
        int, Meta(ge=1, le=10_000), Help("Most calls in a batch that it is sent; 1: no batches.")
    ] = 100
    logs_blocks: Annotated[
        int,
        Meta(ge=0, le=1_000_000_000),
        Help("Most blocks that it searches in one `eth_getLogs`; wider ranges are split. 0: found out by trial."),
    ] = 0
    timeout_seconds: Annotated[Seconds, Help("Deadline for one attempt at this upstream.")] = 15.0
    probe_seconds: Annotated[
        float,
        Meta(ge=0, le=600),
        Help("How often its head is checked while it answers calls; 0: `health.probe_seconds`."),
    ] = 0.0
    connections: Annotated[Positive, Help("Most connections to it, for each worker.")] = 256


class NetworkSettings(Section, frozen=True):
    """One network of a family: `/x/<family>/<network>`."""

    upstreams: Annotated[tuple[UpstreamSettings, ...], Help("At least one.")]
    allow_methods: Annotated[
        tuple[str, ...], Help("Methods that may be called, `*` as a wildcard. Empty: all but the denied.")
    ] = ()
    deny_methods: Annotated[tuple[str, ...], Help("Methods that are refused, `*` as a wildcard.")] = ()
    open_methods: Annotated[
        tuple[str, ...],
        Help(
            "Methods that may be called here although they steer a node, write its files or use its keys, or "
            "although the network is strict, `*` as a wildcard: `anvil_*`. Empty: none of them."
        ),
    ] = ()
    domain_methods: Annotated[
        tuple[str, ...],
        Help(
            "Methods that callers from whitelisted domains may call although they are expensive (`trace_*`) or "
            "not in the family's catalogue, `*` as a wildcard. Empty: those need a token."
        ),
    ] = ()
    strict: Annotated[
        bool,
        Help(
            "Refuse methods that the family's catalogue does not know, but for `open_methods` and "
            "`domain_methods`. `tollgate init` sets it."
        ),
    ] = False
    chain_id: Annotated[
        str,
        Help(
            "The chain id that upstreams must report: a number, or a string such as `0x1` or `0x534e5f4d41494e`. "
            "Empty: the majority's."
        ),
    ] = ""
    lag_blocks: Annotated[
        int,
        Meta(ge=0, le=1_000_000),
        Help("Blocks that an upstream may be behind the highest before it is taken out of rotation."),
    ] = 5
    broadcast: Annotated[int, Meta(ge=1, le=16), Help("Upstreams that a transaction is sent to in parallel.")] = 1
    hedge: Annotated[
        bool,
        Help("Hedging: send a read that takes longer than usual to a second upstream; at most 5 % more calls."),
    ] = True
    cache: Annotated[bool, Help("Answer from memory what cannot have changed.")] = True


class Settings(Section, frozen=True):
    """Everything an operator may set."""

    data_dir: Annotated[Text, Location("Folder for the store, the pepper and the workers' files.")] = (
        "tollgate-data"
    )
    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    directory: DirectorySettings = DirectorySettings()
    store: StoreSettings = StoreSettings()
    shared: ValkeySettings = ValkeySettings()
    secrets: SecretSettings = SecretSettings()
    whitelist: WhitelistSettings = WhitelistSettings()
    accounts: AccountSettings = AccountSettings()
    cache: CacheSettings = CacheSettings()
    health: HealthSettings = HealthSettings()
    websocket: WebSocketSettings = WebSocketSettings()
    ledger: LedgerSettings = LedgerSettings()
    billing: PricingSettings = PricingSettings()
    stripe: StripeSettings = StripeSettings()
    oidc: OidcSettings = OidcSettings()
    mail: MailSettings = MailSettings()
    logging: LoggingSettings = LoggingSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    families: Annotated[
        dict[str, dict[str, NetworkSettings]],
        Help("Networks by family: the table `[families.eth.mainnet]` serves `/x/eth/mainnet`."),
    ] = {}

    @property
    def networks(self) -> dict[str, NetworkSettings]:
        """All networks by path, such as `eth/mainnet`."""
        return {
            f"{family}/{name}": each for family, names in self.families.items() for name, each in names.items()
        }
