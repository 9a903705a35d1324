"""The catalogue of a family: what its methods do, which blocks a call refers to, how its answer may be kept.

Pure, without a clock. What is not in a catalogue is treated with care: it may be a write, so it is never repeated
once its bytes have left, and never kept, and only tokens that may read everything may call it. A family without a
catalogue still proxies; all its methods are unknown.
"""

from __future__ import annotations

from msgspec import Raw

from tollgate.chains import keeping
from tollgate.chains.eth import ETH_METHODS
from tollgate.chains.methods import UNREADABLE, Effect, Holds, Keep, Kind, Look, Method, Scope
from tollgate.chains.scopes import Reader, readers
from tollgate.chains.starknet import STARKNET_METHODS
from tollgate.core.methods import matches
from tollgate.core.shapes import Params

__all__ = ["KNOWN", "OTHER", "Catalogue", "Holds", "Keep", "Kind", "Look", "Method", "Scope", "steers"]

_FAMILIES: dict[str, dict[str, Method]] = {
    "eth": {method.name: method for method in ETH_METHODS},
    "starknet": {method.name: method for method in STARKNET_METHODS},
}
_READERS: dict[str, dict[str, Reader]] = {
    family: readers(family, methods.values()) for family, methods in _FAMILIES.items()
}
KNOWN = {name: method for methods in _FAMILIES.values() for name, method in methods.items()}
"""The methods of all catalogues: nodes of a family without one may have them too."""
# What steers a node, writes its files or uses its keys, of methods that are in no catalogue, in lower case. By
# namespace where little else is in it, so that a method that a node adds tomorrow is of them too.
_STEERING = (
    "admin_*", "engine_*", "personal_*", "miner_*", "testing_*", "*_set*",
    # All of it that is in no catalogue: geth alone has a dozen that write files.
    "debug_*",
    # Development nodes: foundry, hardhat, ganache, zksync, tenderly, starknet-devnet, katana, madara.
    "anvil_*", "hardhat_*", "evm_*", "ganache_*", "config_*", "tenderly_add*", "devnet_*", "dev_*", "katana_*",
    "madara_*",
    # Keys of the node.
    "*_sendtransaction*", "*_sendunsigned*", "eth_sendprivatetransaction", "*_sign*", "*_resend", "wallet_*",
    "signer_*", "account_*", "shh_*", "secretstore_*", "priv_*", "eea_*", "vault_*",
    # Mining, votes of validators, peers, configuration.
    "eth_submit*", "*_submitwork", "*_getwork", "eth_compile*", "clique_*", "ibft_*", "qbft_*", "istanbul_*",
    "raft_*", "quorum*", "perm_*", "plugins_*", "les_*", "opp2p_*", "parity_*", "db_put*", "author_*key*",
    "offchain_*", "system_add*", "system_remove*", "auctioneer_*", "taikoauth_*",
)  # fmt: skip

OTHER = "other"


def steers(name: str) -> bool:
    """Whether a method steers a node, writes its files or uses its keys, as far as its name shows."""
    known = KNOWN.get(name)
    return matches(name.casefold(), _STEERING) if known is None else known.does is Effect.STEERS


class Catalogue:
    """The methods of one family."""

    def __init__(self, family: str) -> None:
        self.family = family
        self._methods = _FAMILIES.get(family, {})
        self._readers = _READERS.get(family, {})
        self.cached = frozenset(name for name, method in self._methods.items() if method.holds is not Holds.NEVER)
        """Methods whose answers may ever be kept."""

    def method(self, name: str) -> Method | None:
        return self._methods.get(name)

    def kind(self, name: str) -> Kind:
        """What this method does, as far as is known."""
        method = self._methods.get(name)
        return Kind.UNKNOWN if method is None else method.kind

    def repeatable(self, name: str) -> bool:
        """Whether the call may safely be repeated at a second node."""
        return self.kind(name) is Kind.READ

    def label(self, name: str) -> str:
        """The method's name in metrics: callers cannot invent new ones."""
        return name if name in self._methods else OTHER

    @property
    def reads(self) -> frozenset[str]:
        """Every method that is a plain read."""
        return frozenset(name for name, method in self._methods.items() if method.kind is Kind.READ)

    @property
    def methods(self) -> frozenset[str]:
        return frozenset(self._methods)

    def readers(self, names: frozenset[str]) -> dict[str, Reader]:
        """What reads the scope of calls of these methods, where there is such a thing."""
        return {name: read for name, read in self._readers.items() if name in names}

    def scope(self, name: str, params: Params) -> Scope:
        """Which blocks a call refers to. Never raises: what it cannot read is `UNREADABLE`."""
        read = self._readers.get(name)
        return UNREADABLE if read is None else read(params)

    def keep(self, scope: Scope, result: Raw | bytes, head: int, finalized: int) -> Keep:
        """How the answer to a call may be kept, where the chain's head and its newest final block are known."""
        return keeping.keep(scope, bytes(result), head, finalized)

    def revealed(self, name: str, scope: Scope, result: Raw | bytes) -> int | None:
        """The number of its node's newest block, where this is an answer about `latest` that shows it."""
        return keeping.revealed(scope, result) if name in self._methods else None
