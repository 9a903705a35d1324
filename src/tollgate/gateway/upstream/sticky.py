"""Calls that only the upstream which was called before can answer: filters, and pages of events.

Its slot is written into what the caller is given: into the id of a filter, and in front of a continuation token.
So every worker finds the upstream again without a list. What leaves is sealed for the caller's team, or for its
token where that may read some contracts only: a node may count its filters up, and one owner must not read or
remove those of another.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from tollgate.core.sealed import BrokenSeal, Cipher
from tollgate.core.shapes import ABSENT, Call, Params, Reply, WrittenCall

MAKE_FILTER = frozenset({"eth_newFilter", "eth_newBlockFilter", "eth_newPendingTransactionFilter"})
_USE_FILTER = frozenset({"eth_getFilterChanges", "eth_getFilterLogs", "eth_uninstallFilter"})
EVENTS = "starknet_getEvents"
METHODS = MAKE_FILTER | _USE_FILTER | {EVENTS}
_FILTER_ID = re.compile(rb'"0x([0-9a-fA-F]+)"')
_OUR_FILTER_ID = re.compile(rb'"0x([0-9a-fA-F]+)([0-9a-fA-F]{2})"')
_OUR_TOKEN = re.compile(r"tg(\d{1,3})\.(.*)", re.DOTALL)
_PLAIN_ID = re.compile(rb'"0x([0-9a-f]{1,64})"')
_SEALED_ID = re.compile(rb'"0[xX]1((?:[0-9a-fA-F]{2}){16,1024})"')
# What is looked at of a text that we have not made.
_MAX_UNKNOWN = 256
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.encode


def decode_slot(method: str, params: Params) -> tuple[Params, int | None]:
    """The parameters as the upstream knows them, and its slot; None where any upstream will do."""
    if method in _USE_FILTER and isinstance(params, list) and params:
        found = _OUR_FILTER_ID.fullmatch(bytes(params[0]))
        if found:
            return [Raw(b'"0x%b"' % found[1]), *params[1:]], int(found[2], 16)
    elif method == EVENTS and params:
        return _without_token(params)
    return params, None


def encode_slot(method: str, result: Raw, slot: int) -> Raw:
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


class TeamSeal:
    """Binds filter ids and continuation tokens to their owner: the team or token that was given them.

    A text that was not made for an owner becomes one that no node has made: so a node answers what is wrong with
    it, in its own words, and learns nothing of what others have.
    """

    def __init__(self, pepper: bytes) -> None:
        self._cipher = Cipher(pepper, "filter")
        self._tokens = Cipher(pepper, "continuation")

    def opened(self, call: Call, owner: str) -> Call:
        """A call of `METHODS` as upstreams understand it."""
        params: Params = None
        if call.method in _USE_FILTER and call.params:
            if isinstance(call.params, dict):
                params = {name: self._filter_id(value, owner) for name, value in call.params.items()}
            else:
                params = [self._filter_id(call.params[0], owner), *call.params[1:]]
        elif call.method == EVENTS and call.params:
            params = self._with_token(call.params, owner)
        if params is None:
            return call
        return WrittenCall(call.method, params, None if call.id is None else Raw(_encode(call.id)))

    def closed(self, method: str, reply: Reply, owner: str) -> Reply:
        """An answer to a call of `METHODS` as its owner is given it."""
        if reply.error is not ABSENT:
            return reply
        if method in MAKE_FILTER:
            return Reply(self._sealed_id(reply.result, owner))
        if method != EVENTS:
            return reply
        try:
            members = _members(reply.result)
            token = _text(members["continuation_token"])
        except (msgspec.MsgspecError, KeyError):
            return reply
        sealed = self._tokens.close(owner, token.encode())
        members["continuation_token"] = Raw(_encode(sealed.hex()))
        return Reply(Raw(_encode(members)))

    def _sealed_id(self, result: Raw, owner: str) -> Raw:
        written = bytes(result)
        plain = _PLAIN_ID.fullmatch(written)
        # Without leading zeros, and the same in upper case: some clients hold a filter's id as a number.
        content = bytes.fromhex(_packed(plain[1].decode())) if plain else b"w" + written
        return Raw(b'"0x1%b"' % self._cipher.close(owner, content).hex().encode())

    def _filter_id(self, written: Raw, owner: str) -> Raw:
        found = _SEALED_ID.fullmatch(bytes(written))
        try:
            sealed = bytes.fromhex(found[1].decode()) if found else b""
            content = self._cipher.open(owner, sealed)
        except (BrokenSeal, ValueError):
            return Raw(b'"0x%b"' % self._unknown(bytes(written)).hex().encode())
        if content[:1] == b"w":
            return Raw(content[1:])
        return Raw(b'"0x%b"' % content.hex().lstrip("0")[1:].encode())

    def _with_token(self, params: list[Raw] | dict[str, Raw], owner: str) -> Params:
        written = params.get("filter") if isinstance(params, dict) else params[0]
        if written is None:
            return None
        try:
            # By its name as JSON has it: one with escapes in it is the same.
            members = _members(written)
            given = members["continuation_token"]
        except (msgspec.MsgspecError, KeyError):
            return None
        if bytes(given) == b"null":
            return None
        try:
            token = self._tokens.open(owner, bytes.fromhex(_text(given))).decode()
        except (msgspec.MsgspecError, BrokenSeal, ValueError):
            token = f"unknown-{self._unknown(bytes(given)).hex()}"
        inside = Raw(_encode({**members, "continuation_token": Raw(_encode(token))}))
        return {**params, "filter": inside} if isinstance(params, dict) else [inside, *params[1:]]

    def _unknown(self, written: bytes) -> bytes:
        """An id that no node has made and that a caller cannot choose."""
        return b"\x7f" + self._cipher.close("no team", written[:_MAX_UNKNOWN])[:12]


def _packed(digits: str) -> str:
    """Digits of a number, marked so that neither their count nor leading zeros are lost."""
    return f"f{digits}" if len(digits) % 2 else f"0f{digits}"
