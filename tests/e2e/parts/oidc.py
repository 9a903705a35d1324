"""oidc-provider, a certified OpenID Connect provider: a real one to sign in with. It reaches for no network.

Its pages are plain forms. Sign-in: the fields `login` (one of the accounts; another ends on an error page) and
`password` (anything), the button "Sign-in". Consent: the button "Continue". Both have the link "[ Cancel ]", which
denies. It remembers a browser by cookies of the host 127.0.0.1: another sign-in in it needs neither again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .need import CLIENTS, need
from .ports import LOOPBACK, free_port
from .processes import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SCRIPT = "oidc-provider.mjs"


@contextmanager
def provider(
    folder: Path,
    *,
    client_id: str,
    client_secret: str,
    redirect_uris: Sequence[str],
    accounts: Mapping[str, Mapping[str, object]],
) -> Iterator[str]:
    """Run a provider with one client, and yield its issuer URL.

    `accounts` gives the claims of each login (`email`, `email_verified`, `name`); the login is the subject.
    Redirect URIs may be http:// on a loopback address. The email is in userinfo, not in the id token.
    """
    node, packages = need("node"), need("js")
    port = free_port()
    settings = {
        "port": port,
        "client_id": client_id,
        "client_secret": client_secret,
        "redirect_uris": list(redirect_uris),
        "accounts": {login: dict(claims) for login, claims in accounts.items()},
    }
    # A module's imports are resolved from the folder it lies in.
    with tempfile.TemporaryDirectory(prefix="oidc-", dir=packages.parent) as beside:
        script, written = Path(beside) / SCRIPT, Path(beside) / "settings.json"
        shutil.copy(CLIENTS / SCRIPT, script)
        written.write_text(json.dumps(settings))
        argv = [str(node), str(script), str(written)]
        with running(argv, folder=folder, ready=lambda program: "ready\n" in program.lines(), within=60):
            yield f"http://{LOOPBACK}:{port}"
