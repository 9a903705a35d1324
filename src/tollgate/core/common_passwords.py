"""Whether a password is one of those that guessers try first: common words and keyboard walks, however dressed up.

Pure. A list of all leaked passwords would be larger than the service; nearly all of them with ten characters or
more are made of a few words and habits, and those are here.
"""

from __future__ import annotations

import re

_TEXT = """
abc access account admin administrator adobe alpha america angel apple ashley asdf asdfgh asdfghjkl autumn
azerty baby bailey banana baseball basketball batman beautiful bitcoin blockchain blink bonjour butterfly
changeme charlie chelsea chocolate christmas computer cookie crypto daniel default demo dolphin dragon
ethereum flower football forever freedom friends fuck fuckyou gandalf george ginger google guest hannah hello
hockey hunter iloveyou internet jennifer jessica jesus jordan joshua killer letmein liverpool login london
love lovely loveyou maggie manager master matrix merlin michael michelle mickey monkey mustang mypassword
naruto nicole ninja node nothing number oracle orange owner pass passphrase passwd password pepper pokemon
princess private purple qazwsx qwer qwert qwerty qwertyuiop root ruby samsung samuel secret secure security
server shadow soccer spring starknet starwars summer sunshine super superman supersecret system test testing
thomas tiger tollgate trustno user wallet welcome whatever william winter wizard zaqxsw zxcvbn zxcvbnm
"""
_WORDS = frozenset(_TEXT.split())
_LEET = str.maketrans("013457@$!|", "oleastasii")
_WALKS = (
    "abcdefghijklmnopqrstuvwxyz",
    "01234567890123456789",
    "qwertyuiopasdfghjklzxcvbnm",
    "1q2w3e4r5t6y7u8i9o0p",
    "1qaz2wsx3edc4rfv5tgb6yhn7ujm",
    "qazwsxedcrfvtgbyhnujm",
)
_LEAST_KINDS = 4
_ENDS = re.compile(r"^[^a-z]+|[^a-z]+$")


def is_common(password: str) -> bool:
    """Whether it would be guessed among the first."""
    lowered = password.casefold()
    if len(set(lowered)) < _LEAST_KINDS or _repeats(lowered):
        return True
    letters = re.sub(r"[^a-z0-9]", "", lowered)
    if any(letters in walk or letters in walk[::-1] for walk in _WALKS):
        return True
    inside = _ENDS.sub("", lowered)
    return any(_is_words(form) for form in (lowered, inside.translate(_LEET)))


def _repeats(text: str) -> bool:
    """Whether it is one piece again and again."""
    return any(text == (text[:length] * len(text))[: len(text)] for length in range(1, len(text) // 2 + 1))


def _is_words(text: str) -> bool:
    """Whether nothing is left of it but at most two common words, digits and signs."""
    words = [word for word in re.split(r"[^a-z]+", text) if word]
    if not words or len(words) > 2:
        return not words
    return all(word in _WORDS or _is_pair(word) for word in words)


def _is_pair(word: str) -> bool:
    return any(word[:at] in _WORDS and word[at:] in _WORDS for at in range(2, len(word) - 1))
