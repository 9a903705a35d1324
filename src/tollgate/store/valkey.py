"""What nodes share in Valkey or Redis: leases of limits, and answers about final blocks.

Everything there is short-lived and can be lost: a node that loses it continues by itself. All keys begin with the
version of their format and are in one slot of a cluster. Times are the server's own; clocks of nodes are never
compared. redis-py is a lazy module: it comes with the extra `[valkey]`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib.util
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from tollgate.core.leases import OVER, Lease, LeaseReply, LeaseReport
from tollgate.core.secrets import derive
from tollgate.errors import StartError
from tollgate.lazy_module import LazyModule
from tollgate.store.base import SharedAnswer, SharedUnreachable

if TYPE_CHECKING:
    import redis.asyncio.retry
    import redis.backoff
    import redis.exceptions
    from redis.asyncio import Redis
else:
    redis = LazyModule("redis")

VERSION = 1
"""Part of every key: it changes with the format, so that nodes of two versions do not read each other's."""
DEADLINE_SECONDS = 0.25
# A node that was not seen for so long is gone. Longer than a second, so that what it used of limits by the second
# is there again when others get its share.
ALIVE_MILLISECONDS = 3_000
# Limits that some node wants more of than its equal part. Others stay at equal parts, which is safe.
MAX_LEASED = 256
# Answers that a network keeps there, about; the oldest make room.
MAX_ANSWERS = 1_024
# Read in one turn: a worker must not be busy with them for long.
_READ_AT_ONCE = 16
T = TypeVar("T")

# One turn of one node. A hash for each limit that is leased: the limit, `held:<node>`, `want:<node>`, and `free`,
# what of the burst was given up and not yet taken. What nodes hold never adds up to more than the pool: a share
# grows into what is free, and others are free to take it only after its holder has reported that it went down.
# What a node that is gone held is forgotten: others have it when it comes back.
# `division` is `targets` of core/leases.py.
_TURN = """
local prefix, me, alive, most, over = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local nodes, hot, near = prefix .. 'nodes', prefix .. 'leased', 0.002
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local known = redis.call('ZSCORE', nodes, me)
redis.call('ZADD', nodes, now, me)
redis.call('ZREMRANGEBYSCORE', nodes, '-inf', now - alive)
redis.call('ZREMRANGEBYSCORE', hot, '-inf', now - alive)
local ids = redis.call('ZRANGE', nodes, 0, -1)
local n = #ids
local here = {}
for _, id in ipairs(ids) do here[id] = true end

local function pool_of(count)
  return math.max(0, 1 + over - n * math.max(over / n, 1 / count))
end

for i = 6, #ARGV, 6 do
  local mark, window, count, want, lowered, freed = unpack(ARGV, i, i + 5)
  local key = prefix .. 'lease:' .. mark
  local exists = redis.call('EXISTS', key) == 1
  if not exists and tonumber(want) > 0 and redis.call('ZCARD', hot) < most then
    exists = true
    redis.call('HSET', key, 'window', window, 'count', count, 'free', 0)
    for _, id in ipairs(ids) do
      redis.call('HSET', key, 'held:' .. id, pool_of(tonumber(count)) / n)
    end
  end
  if exists then
    redis.call('HSET', key, 'want:' .. me, want)
    local held = tonumber(redis.call('HGET', key, 'held:' .. me) or 0)
    if lowered ~= '' and tonumber(lowered) < held then
      local max_freed = tonumber(window) * (held - tonumber(lowered))
      redis.call('HINCRBYFLOAT', key, 'free', math.min(tonumber(freed), max_freed))
      redis.call('HSET', key, 'held:' .. me, lowered)
    end
    redis.call('PEXPIRE', key, alive)
    redis.call('ZADD', hot, now, mark)
  end
end

local function division(wants, mine, pool)
  local order = {}
  for i = 1, n do order[i] = i end
  table.sort(order, function(a, b) return wants[a] < wants[b] end)
  local left, given = pool, 0
  for done, i in ipairs(order) do
    local part = math.min(wants[i], left / (n - done + 1))
    left = left - part
    if i == mine then given = part end
  end
  return given + left / n
end

local out = {tostring(n), known and '1' or '0'}
for _, mark in ipairs(redis.call('ZRANGE', hot, 0, -1)) do
  local key = prefix .. 'lease:' .. mark
  local flat, h = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    local id = string.match(flat[i], ':(.*)')
    if id and not here[id] then redis.call('HDEL', key, flat[i]) else h[flat[i]] = flat[i + 1] end
  end
  if not h.window then
    redis.call('ZREM', hot, mark)
  else
    local window, pool, free = tonumber(h.window), pool_of(tonumber(h.count)), tonumber(h.free)
    local wants, total, quiet, even, mine = {}, 0, true, true, 0
    for i, id in ipairs(ids) do
      local held = tonumber(h['held:' .. id] or 0)
      wants[i] = tonumber(h['want:' .. id] or 0)
      total = total + held
      quiet = quiet and wants[i] == 0
      even = even and math.abs(held - pool / n) < 5 * near
      if id == me then mine = i end
    end
    if quiet and even then
      redis.call('DEL', key)
      redis.call('ZREM', hot, mark)
    else
      local held = tonumber(h['held:' .. me] or 0)
      local share, tokens = division(wants, mine, pool), 0
      if share > held - near then
        local grown = math.min(share - held, pool - total)
        share = held
        if grown > near then
          share = held + grown
          tokens = math.max(0, math.min(free, window * (pool - total), window * grown))
          redis.call('HSET', key, 'held:' .. me, share, 'free', free - tokens)
        end
      end
      for _, each in ipairs({mark, h.window, h.count, tostring(share), tostring(tokens)}) do
        out[#out + 1] = each
      end
    end
  end
end
return out
"""


def checked(url: str) -> str:
    """An address that redis-py takes, or StartError."""
    if importlib.util.find_spec("redis") is None:
        raise StartError('shared.url names Valkey, which needs redis-py: pip install "tollgate-rpc[valkey]".')
    scheme, _, rest = url.partition("://")
    return f"{scheme.replace('valkey', 'redis')}://{rest}"


def prefix(secret: bytes) -> str:
    """What all keys of an installation begin with: two of them may use one server."""
    name = derive(secret, "names of Valkey keys").hex()[:16]
    return f"{{tollgate-{name}}}:{VERSION}:"


def _client(url: str, seconds: float) -> Redis:
    return redis.asyncio.Redis.from_url(
        checked(url),
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        # The next turn is the retry.
        retry=redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0),
        max_connections=2,
        protocol=2,
    )


async def _in_time(seconds: float, answer: Awaitable[T]) -> T:
    """What the server answers, or SharedUnreachable."""
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
        raise SharedUnreachable(f"{type(error).__name__}: {error}".removesuffix(": ")) from error


class ValkeyLeaseBook:
    """Leases of limits, handed out by a script: one round trip a turn."""

    def __init__(self, url: str, prefix: str, seconds: float = DEADLINE_SECONDS) -> None:
        self._prefix = prefix
        self._seconds = seconds
        self._client = _client(url, seconds)
        self._turn: Any = self._client.register_script(_TURN)

    async def exchange(self, node: str, reports: Sequence[LeaseReport]) -> LeaseReply:
        arguments: list[str | float] = [self._prefix, node, ALIVE_MILLISECONDS, MAX_LEASED, OVER]
        for each in reports:
            lowered = "" if each.lowered is None else each.lowered
            arguments += (each.mark, each.window, each.count, each.want, lowered, each.freed)
        reply = await _in_time(self._seconds, self._turn(keys=(f"{self._prefix}nodes",), args=arguments))
        try:
            return _lease_reply(reply)
        except (ValueError, TypeError, LookupError) as error:
            raise SharedUnreachable("its leases are none: others write there") from error

    async def leave(self, node: str) -> None:
        await _in_time(self._seconds, self._client.zrem(f"{self._prefix}nodes", node))

    async def close(self) -> None:
        await self._client.aclose()


def _lease_reply(reply: list[bytes]) -> LeaseReply:
    """Read what the script returns; an error where what it found there is not ours."""
    leases = []
    for at in range(2, len(reply), 5):
        numbers = [float(each) for each in reply[at + 1 : at + 5]]
        if not all(isfinite(number) and number >= 0 for number in numbers):
            raise ValueError("a lease of no number")
        leases.append(Lease(reply[at].decode(), *numbers))
    return LeaseReply(int(reply[0]), reply[1] == b"1", tuple(leases))


class ValkeyAnswerLog:
    """Answers in a bounded stream for each network. What was not written with our secret is passed over."""

    def __init__(self, url: str, prefix: str, secret: bytes, seconds: float = DEADLINE_SECONDS) -> None:
        self._prefix = prefix
        self._secret = derive(secret, "shared answers")
        self._seconds = seconds
        self._client = _client(url, seconds)
        self._me = secrets.token_bytes(8)
        self._read: dict[str, bytes] = {}
        """Up to where each stream was read."""

    async def exchange(
        self, networks: Sequence[str], sent: Mapping[str, Sequence[SharedAnswer]]
    ) -> dict[str, list[SharedAnswer]]:
        pipeline: Any = self._client.pipeline(transaction=False)
        for network, answers in sent.items():
            for each in answers:
                fields = {"by": self._me, "key": each.key, "block": each.number, "result": each.result}
                fields["seal"] = self._seal(network, each)
                pipeline.xadd(self._stream(network), fields, maxlen=MAX_ANSWERS, approximate=True)
        if networks:
            places = {self._stream(network): self._read.get(network, b"0") for network in networks}
            pipeline.xread(places, count=_READ_AT_ONCE)
        replies = await _in_time(self._seconds, pipeline.execute()) if networks or sent else [None]
        found = dict(replies[-1] or ()) if networks else {}
        return {
            network: self._answers(network, found[self._stream(network).encode()])
            for network in networks
            if self._stream(network).encode() in found
        }

    async def forget(self, network: str) -> None:
        await _in_time(self._seconds, self._client.delete(self._stream(network)))

    async def close(self) -> None:
        await self._client.aclose()

    def _stream(self, network: str) -> str:
        return f"{self._prefix}answers:{network}"

    def _answers(self, network: str, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[SharedAnswer]:
        answers = []
        for place, fields in entries:
            self._read[network] = place
            if fields.get(b"by") == self._me:
                continue
            try:
                answer = SharedAnswer(fields[b"key"], int(fields[b"block"]), fields[b"result"])
            except (KeyError, ValueError):
                continue
            if hmac.compare_digest(self._seal(network, answer), fields.get(b"seal", b"")):
                answers.append(answer)
        return answers

    def _seal(self, network: str, answer: SharedAnswer) -> bytes:
        """Shows that a worker of this installation wrote it, for this network."""
        seal = hashlib.blake2b(key=self._secret, digest_size=16)
        for part in (network.encode(), answer.key, b"%d" % answer.number, answer.result):
            seal.update(len(part).to_bytes(8, "big") + part)
        return seal.digest()
