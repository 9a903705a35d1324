"""Method names against what may be called: what is refused unless opened, allow and deny lists.

Pure text rules. A method that a node would take for another is treated as that one: names are compared without
regard to case for refusing, exactly for allowing; a name with space or with more than ASCII is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

# Methods that steer a node, write its files or use its keys, in lower case. By namespace where nothing else is
# in it, so that a method that a node adds tomorrow is refused too.
GUARDED = (
    "admin_*", "engine_*", "personal_*", "miner_*", "testing_*",
    # Development nodes: foundry, hardhat, ganache, zksync, tenderly, starknet-devnet, katana, madara.
    "anvil_*", "hardhat_*", "evm_*", "ganache_*", "config_*", "tenderly_set*", "tenderly_add*", "devnet_*",
    "dev_*", "katana_*", "madara_*",
    # Keys of the node.
    "eth_sendtransaction", "eth_sendprivatetransaction", "eth_sign*", "eth_resend", "wallet_*", "signer_*",
    "account_*", "shh_*", "secretstore_*", "priv_*", "eea_*",
    # Mining, votes of validators, peers, configuration.
    "eth_submit*", "eth_getwork", "eth_sethash*", "eth_compile*", "clique_*", "ibft_*", "qbft_*", "istanbul_*",
    "perm_*", "plugins_*", "les_*", "opp2p_*", "parity_*", "db_put*", "author_*key*", "offchain_*", "system_add*",
    "system_remove*", "auctioneer_*", "taikoauth_*",
    # All of it but what is below: geth alone has a dozen that write files.
    "debug_*",
)  # fmt: skip
# Reads among them: they neither change a node nor write to its disk.
_PLAIN = (
    "debug_get*", "debug_trace*", "debug_account*", "debug_storagerange*", "debug_executionwitness*",
    "debug_intermediateroots", "debug_dumpblock", "debug_preimage", "debug_printblock", "debug_codebyhash",
    "debug_simulate*", "clique_get*", "clique_status", "ibft_get*", "qbft_get*", "istanbul_get*",
    "istanbul_nodeaddress", "parity_pendingtransactions*", "parity_getblockreceipts", "parity_nextnonce",
)  # fmt: skip
# But these read a node's files, its settings or its database as it is.
_NOT_PLAIN = frozenset({"debug_traceblockfromfile", "debug_getconfigvalue", "debug_getfromdb"})
# Reads that cost a node seconds of work. A forged Origin must not be enough to call them.
EXPENSIVE = (
    "debug_trace*", "trace_*", "arbtrace_*", "debug_account*", "debug_storagerange*", "debug_executionwitness*",
    "debug_intermediateroots", "debug_dumpblock", "debug_getmodified*", "debug_simulate*",
)  # fmt: skip
# What no node and no rule of ours could read in two ways: neither space nor letters that look like others.
_NAME = re.compile(r"[!-~]+")
_PATTERN = re.compile(r"[A-Za-z0-9_.:/*-]{1,64}")


class Policy(Struct, frozen=True):
    """Lists of methods, `*` standing for any characters. An empty allow list allows everything."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    """Guarded methods that may be called all the same."""
    domains: tuple[str, ...] = ()
    """Expensive methods that callers from a whitelisted domain may call all the same."""


def refusal_of(method: str, policy: Policy) -> str | None:
    """Why a method is closed on a network, or None where it may be called."""
    if is_guarded(method) and not matches(method, policy.opened):
        return "It steers a node, writes its files or uses its keys: the operator can open it (`open_methods`)."
    if not _NAME.fullmatch(method):
        return "A method's name has printable ASCII characters and no space."
    return listed(method, policy)


def listed(method: str, policy: Policy) -> str | None:
    """Why the allow and deny lists refuse a method, or None where they do not."""
    if policy.deny and matches(method.casefold(), [pattern.casefold() for pattern in policy.deny]):
        return "It is on the deny list of this network."
    if policy.allow and not matches(method, policy.allow):
        return f"Allowed here: {', '.join(policy.allow)}."
    return None


def domain_refusal_of(method: str, policy: Policy) -> str | None:
    """Why a caller without a token may not call a method that others may, or None where it may."""
    if not is_expensive(method) or matches(method, policy.domains):
        return None
    return "It is expensive, so it needs a token: send the header Authorization: Bearer <token>."


def is_guarded(method: str) -> bool:
    """Whether a method steers a node, writes its files or uses its keys."""
    lowered = method.casefold()
    return matches(lowered, GUARDED) and (not matches(lowered, _PLAIN) or lowered in _NOT_PLAIN)


def is_expensive(method: str) -> bool:
    """Whether a method costs a node much more than a look-up."""
    return matches(method.casefold(), EXPENSIVE)


def may_be_called(pattern: str, opened: Sequence[str]) -> bool:
    """Whether a pattern of a token's list can let anything through where these guarded methods are open."""
    return not is_guarded(pattern) or matches(pattern, opened) or any(_fits(each, pattern) for each in opened)


def is_pattern(text: str) -> bool:
    """Whether a list may hold this: a method's name, or one with `*` in it."""
    return _PATTERN.fullmatch(text) is not None and "**" not in text


def matches(method: str, patterns: Sequence[str]) -> bool:
    return any(_fits(method, pattern) for pattern in patterns)


def _fits(method: str, pattern: str) -> bool:
    """Match `*` in linear time: a regular expression could be made to look for ever."""
    first, *middle = pattern.split("*")
    if not middle:
        return method == pattern
    last = middle.pop()
    if len(method) < len(first) + len(last) or not method.startswith(first) or not method.endswith(last):
        return False
    position = len(first)
    for part in middle:
        found = method.find(part, position, len(method) - len(last))
        if found < 0:
            return False
        position = found + len(part)
    return True
