"""Nodes of one chain behind proxies behind a gateway, and what goes wrong with them.

The node, the proxy and the upstream of one name belong together. A fault is a block that a test enters when all is
well; it is over, where it can be, when the test leaves.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .anvil import Anvil, anvil
from .anvils import Chain, chain
from .processes import eventually
from .tollgate import Gateway, serving
from .toxiproxy import Proxy, toxiproxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

NAMES = "abc"


@dataclass(frozen=True)
class FaultySetup:
    """Nodes of one chain, a proxy before each, and a gateway that knows only the proxies."""

    chain: Chain
    proxies: dict[str, Proxy]
    gateway: Gateway

    def node(self, name: str) -> Anvil:
        """Give a node of the chain."""
        return self.chain.nodes[NAMES.index(name)]

    def sum(self, metric: str, *labels: str) -> float:
        """Add up the samples of a metric that have these labels."""
        return sum(
            value
            for sample, value in self.gateway.metrics().items()
            if sample.startswith(metric + "{") and all(label in sample for label in labels)
        )

    def hedges(self) -> float:
        """Count the second attempts so far."""
        return self.sum("tollgate_upstream_hedges_total")

    def becomes(self, name: str, state: str) -> None:
        """Wait until the prober shows an upstream so."""
        labels = (f'upstream="{name}"', f'state="{state}"')
        eventually(lambda: self.sum("tollgate_upstream_state", *labels), what=f"{name} being {state}")


@contextmanager
def healthy(_: FaultySetup) -> Iterator[None]:
    """Have none."""
    yield


@contextmanager
def killed(setup: FaultySetup, names: str = "a") -> Iterator[None]:
    """Let nodes be gone; their proxies take connections, and close them."""
    for name in names:
        setup.chain.leave(setup.node(name))
        setup.node(name).kill()
    yield
    for name in names:
        setup.becomes(name, "down")


@contextmanager
def paused(setup: FaultySetup) -> Iterator[None]:
    """Let a node hold its connections and send nothing, until it goes on where it was."""
    setup.chain.leave(setup.node("a"))
    with setup.node("a").paused():
        yield
        setup.becomes("a", "down")
    setup.chain.join(setup.node("a"))
    setup.becomes("a", "up")


@contextmanager
def lagging(setup: FaultySetup) -> Iterator[None]:
    """Let a node stay where it is while the chain goes on, until it comes along."""
    setup.chain.leave(setup.node("a"))
    yield
    setup.becomes("a", "lagging")
    setup.chain.join(setup.node("a"))
    setup.becomes("a", "up")


@contextmanager
def closed_late(setup: FaultySetup) -> Iterator[None]:
    """Let a node be gone, and those who are connected not know it for a while."""
    setup.proxies["a"].spoil("slow_close", delay=2_000)
    with killed(setup):
        yield


@contextmanager
def silent(setup: FaultySetup) -> Iterator[None]:
    """Let calls arrive, and no answer come back."""
    setup.proxies["a"].spoil("timeout", timeout=0)
    yield
    setup.becomes("a", "down")


@contextmanager
def strange(setup: FaultySetup) -> Iterator[None]:
    """Have an upstream that is on another chain, from the start."""
    yield
    setup.becomes("a", "wrong_chain")


def spoiled(
    kind: str, *, share: float = 1.0, **attributes: int
) -> Callable[[FaultySetup], AbstractContextManager[None]]:
    """Give the fault that toxiproxy makes."""

    @contextmanager
    def fault(setup: FaultySetup) -> Iterator[None]:
        setup.proxies["a"].spoil(kind, share=share, **attributes)
        yield

    return fault


@dataclass(frozen=True)
class Situation:
    """What is wrong, from some moment on; `priorities` is that of each upstream."""

    words: str
    fault: Callable[[FaultySetup], AbstractContextManager[None]]
    priorities: Sequence[int] = (0, 0)
    strange: bool = False
    """Whether the first upstream is a node of another chain."""


@contextmanager
def setup_of(situation: Situation, folder: Path) -> Iterator[FaultySetup]:
    """Run all of it. The cache is off: every call needs an upstream."""
    with ExitStack() as opened:
        nodes = opened.enter_context(chain(folder, len(situation.priorities)))
        nodes.mine(10, ticks=1)
        ports = [node.port for node in nodes.nodes]
        if situation.strange:
            ports[0] = opened.enter_context(anvil(folder / "other_chain", chain_id=1)).port
        toxic = opened.enter_context(toxiproxy(folder / "toxiproxy"))
        proxies = {name: toxic.before(name, port) for name, port in zip(NAMES, ports, strict=False)}
        upstreams = [
            {"name": name, "url": proxies[name].url, "priority": priority}
            for name, priority in zip(proxies, situation.priorities, strict=True)
        ]
        settings: dict[str, dict[str, object]] = {
            "server": {"workers": 2},
            "families.eth.sepolia": {"cache": False},
        }
        networks = {"eth/sepolia": upstreams}
        yield FaultySetup(nodes, proxies, opened.enter_context(serving(folder / "gateway", networks, settings)))
