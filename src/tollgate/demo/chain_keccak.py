"""Keccak-256, as Ethereum and Starknet use it for transaction hashes, selectors and blooms.

Owns the permutation and nothing of any chain. The standard library has only the later SHA-3, which pads
differently; clients such as ethers compare the hash of a sent transaction with their own. Slow (half a
millisecond for each 136 bytes): results for fixed names belong in constants, inputs must be bounded.
"""

from __future__ import annotations

_RATE = 136
_LANE = (1 << 64) - 1


def _round_constants() -> list[int]:
    constants, register = [], 1
    for _ in range(24):
        constant = 0
        for bit in range(7):
            if register & 1:
                constant |= 1 << ((1 << bit) - 1)
            register <<= 1
            if register & 0x100:
                register ^= 0x171
        constants.append(constant)
    return constants


_ROUNDS = _round_constants()


def _rotate(lane: int, by: int) -> int:
    by %= 64
    return (lane << by | lane >> (64 - by)) & _LANE


def _permute(lanes: list[int]) -> None:
    """Apply Keccak-f[1600] in place; the lane of column x and row y is at x + 5 * y."""
    for constant in _ROUNDS:
        columns = [lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20] for x in range(5)]
        for x in range(5):
            parity = columns[x - 1] ^ _rotate(columns[(x + 1) % 5], 1)
            for y in range(0, 25, 5):
                lanes[x + y] ^= parity
        x, y, moving = 1, 0, lanes[1]
        for step in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            moving, lanes[x + 5 * y] = lanes[x + 5 * y], _rotate(moving, (step + 1) * (step + 2) // 2)
        for y in range(0, 25, 5):
            row = lanes[y : y + 5]
            for x in range(5):
                lanes[x + y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5] & _LANE)
        lanes[0] ^= constant


def keccak256(data: bytes) -> bytes:
    """Return the Keccak-256 hash of `data`."""
    lanes = [0] * 25
    fill = _RATE - len(data) % _RATE
    padding = b"\x81" if fill == 1 else b"\x01" + bytes(fill - 2) + b"\x80"
    padded = data + padding
    for start in range(0, len(padded), _RATE):
        for lane in range(_RATE // 8):
            at = start + 8 * lane
            lanes[lane] ^= int.from_bytes(padded[at : at + 8], "little")
        _permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes[:4])
