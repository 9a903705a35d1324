"""The command-line tool as a person or a script runs it: a real process with a home folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .tollgate import TOLLGATE

if TYPE_CHECKING:
    from pathlib import Path

# No keyring of the machine that runs the tests is touched.
NO_KEYRING = "keyring.backends.fail.Keyring"


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed for programs."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Tool:
    """A tool that knows one service; without a token it is not logged in."""

    home: Path
    url: str
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its processes, none of the tester's own Tollgate among them."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
        return {
            **outside,
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "PYTHON_KEYRING_BACKEND": NO_KEYRING,
            "TOLLGATE_URL": self.url,
            **self.variables,
        }

    def with_token(self, token: str) -> Tool:
        """The same tool, logged in by TOLLGATE_TOKEN."""
        return Tool(self.home, self.url, {**self.variables, "TOLLGATE_TOKEN": token})

    def __call__(self, *arguments: str, typed: str = "", within: float = 60) -> Ran:
        """Run one command to its end."""
        ended = subprocess.run(
            [TOLLGATE, *arguments],
            input=typed,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=within,
            check=False,
        )
        assert "Traceback" not in ended.stderr, ended.stderr
        return Ran(ended.returncode, ended.stdout, ended.stderr)


def admin(config: Path, *arguments: str, typed: str = "") -> Ran:
    """Run `tollgate admin` on the settings of a service."""
    ended = subprocess.run(
        [TOLLGATE, "admin", *arguments, "--config", str(config)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(ended.returncode, ended.stdout, ended.stderr)
