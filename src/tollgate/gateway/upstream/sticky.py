"""Questions that only the upstream which was asked before can answer: filters, and pages of events.

Its row on the board is written into what the caller is given: into the id of a filter, and in front of a
continuation token. So every worker finds the upstream again, and nobody keeps a list.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from tollgate.core.shapes import Params

MAKE_FILTER = frozenset({"eth_newFilter", "eth_newBlockFilter", "eth_newPendingTransactionFilter"})
_USE_FILTER = frozenset({"eth_getFilterChanges", "eth_getFilterLogs", "eth_uninstallFilter"})
EVENTS = "starknet_getEvents"
METHODS = MAKE_FILTER | _USE_FILTER | {EVENTS}
_FILTER_ID = re.compile(rb'"0x([0-9a-fA-F]+)"')
_OUR_FILTER_ID = re.compile(rb'"0x([0-9a-fA-F]+)([0-9a-fA-F]{2})"')
_OUR_TOKEN = re.compile(r"tg(\d{1,3})\.(.*)", re.DOTALL)
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.encode


def unpinned(method: str, params: Params) -> tuple[Params, int | None]:
    """The parameters as the upstream knows them, and its row; None where any upstream will do."""
    if method in _USE_FILTER and isinstance(params, list) and params:
        found = _OUR_FILTER_ID.fullmatch(bytes(params[0]))
        if found:
            return [Raw(b'"0x%b"' % found[1]), *params[1:]], int(found[2], 16)
    elif method == EVENTS and params:
        return _without_token(params)
    return params, None


def pinned(method: str, result: Raw, slot: int) -> Raw:
    """A result as the caller is given it."""
    if method in MAKE_FILTER:
        found = _FILTER_ID.fullmatch(bytes(result))
        return Raw(b'"0x%b%02x"' % (found[1], slot)) if found else result
    if method != EVENTS or b'"continuation_token"' not in bytes(result):
        return result
    try:
        members = _members(result)
        token = _text(members["continuation_token"])
    except (msgspec.MsgspecError, KeyError):
        return result
    members["continuation_token"] = Raw(_encode(f"tg{slot}.{token}"))
    return Raw(_encode(members))


def _without_token(params: list[Raw] | dict[str, Raw]) -> tuple[Params, int | None]:
    """Take our mark off the continuation token of an event filter."""
    try:
        written = params.get("filter") if isinstance(params, dict) else params[0]
        if written is None or b'"continuation_token"' not in bytes(written):
            return params, None
        members = _members(written)
        found = _OUR_TOKEN.fullmatch(_text(members["continuation_token"]))
    except (msgspec.MsgspecError, KeyError):
        return params, None
    if found is None:
        return params, None
    members["continuation_token"] = Raw(_encode(found[2]))
    inside = Raw(_encode(members))
    slot = int(found[1])
    return ({**params, "filter": inside} if isinstance(params, dict) else [inside, *params[1:]]), slot
