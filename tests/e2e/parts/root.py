"""A root folder of its own: the system's programs, an /etc and a /var that a test may change, other users.

Each command runs in a mount namespace of its own, so nothing has to be unmounted; what it writes stays in the
folder for the next one. Needs to be root itself, to become others.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .need import ROOT, need

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Of the system as it is: programs, libraries, devices.
_SHARED = ("usr", "bin", "sbin", "lib", "lib64", "dev", "proc")
_ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "hosts", "localtime", "login.defs", "ssl")


class ChangedRoot:
    """A folder that commands see as `/`."""

    def __init__(self, folder: Path) -> None:
        self._unshare = need("namespaces")
        self.folder = folder
        for name in (*_SHARED, "etc", "var/lib", "opt", "tmp", "run", "data", "usr-local", "sysusers"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        # As after an installation, whatever umask the test has.
        for each in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            each.chmod(0o755)
        (folder / "tmp").chmod(0o1777)
        for name in _ETC:
            source = Path("/etc") / name
            if source.is_dir():
                shutil.copytree(source, folder / "etc" / name, symlinks=True)
            elif source.exists():
                shutil.copyfile(source, folder / "etc" / name)
                (folder / "etc" / name).chmod(0o644)
        (folder / "opt" / "tollgate").symlink_to(ROOT / ".venv")

    def command(self, argv: Sequence[str], *, binds: Mapping[Path, str] | None = None) -> list[str]:
        """The command line that runs a command in this root, as root."""
        top = self.folder
        shared = [(f"/{name}", name) for name in _SHARED if Path(f"/{name}").exists()]
        # The project and its Python, where they are; the folders above them are open to others here.
        own = [(str(path), str(path).lstrip("/")) for path in (ROOT, *_python_folders())]
        # What a command of the documentation installs into /usr stays here.
        inner = [(str(top / "usr-local"), "usr/local/bin"), (str(top / "sysusers"), "usr/lib/sysusers.d")]
        lines = ["set -e", "umask 022"]
        for source, target in [
            *shared,
            *inner,
            *own,
            *((str(at), to.lstrip("/")) for at, to in (binds or {}).items()),
        ]:
            place = top / target
            if not target.startswith("usr/"):
                lines.append(f"mkdir -p {shlex.quote(str(place))}")
            how = "--rbind" if target in ("dev", "proc") else "--bind"
            lines.append(f"mount {how} {shlex.quote(source)} {shlex.quote(str(place))}")
        lines.append(f"exec chroot {shlex.quote(str(top))} {shlex.join(argv)}")
        return [str(self._unshare), "--mount", "sh", "-c", "\n".join(lines)]

    def run(
        self, argv: Sequence[str], *, binds: Mapping[Path, str] | None = None, env: Mapping[str, str] | None = None
    ) -> str:
        ran = subprocess.run(
            self.command(argv, binds=binds), env=clean(env), capture_output=True, text=True, timeout=120,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert ran.returncode == 0, f"{shlex.join(argv)}\n{ran.stdout}{ran.stderr}"
        return ran.stdout


def clean(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a new shell of root."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", **(env or {})}


def as_user(user: int, group: int, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """A command under another uid with exactly these variables, as systemd and containers start one."""
    variables = [f"{name}={value}" for name, value in env.items()]
    switch = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
    return [*switch, "env", "-i", *variables, *argv]


def _python_folders() -> list[Path]:
    """Where the interpreter is, unless it is the system's."""
    folder = Path(sys.base_prefix)
    return [] if folder.is_relative_to("/usr") else [folder]
