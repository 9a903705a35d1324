"""A short run of each fuzz target: what is in the tree, and some hundred inputs made of it."""

from __future__ import annotations

import random

import pytest
from tests.fuzz.engine import Failed, changed, fuzz, seeds
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_in_a_short_run(name: str) -> None:
    assert seeds(name), "every target has inputs to begin with"
    fuzz(TARGETS[name], seeds(name), 0.4, random.Random(0))


def test_defect_is_found_and_its_input_reported() -> None:
    def fails(data: bytes) -> None:
        if b"{" in data:
            raise ValueError("no good")

    with pytest.raises(Failed, match=r"ValueError: no good; the input is b'.*\{"):
        fuzz(fails, [b"abc"], 20.0, random.Random(1))


def test_inputs_stay_small() -> None:
    chance = random.Random(2)
    data = b"x" * 4_000
    for _ in range(200):
        data = changed(data, [data], chance)
        assert len(data) <= 4_096
