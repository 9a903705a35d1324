"""A service that serves nothing, for tests of `tollgate reload`: the real parent, one child that follows settings.

    python small_service.py FOLDER [FILE] [--deaf | --dies | --fails | --collector]

Prints `ready`. With --deaf it never answers a SIGHUP, with --dies it dies of one; with --fails its child
cannot put settings into effect; with --collector it is the second service of its folder.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

from tollgate import log
from tollgate.core.nodes import ALL_ROLES
from tollgate.processes.reloader import Reloader
from tollgate.processes.service_lock import ServiceLock, suffix
from tollgate.processes.shared_settings import SettingsFollower, SharedSettings
from tollgate.processes.supervisor import Child, Lifeline, Supervisor
from tollgate.settings.file import Origin
from tollgate.settings.model import Settings
from tollgate.shm.upstream_status import StatusSlots


def main(folder: Path, file: Path | None, how: str) -> None:
    log.configure("error", "json")
    origin = Origin(file, {}) if file else None
    settings = origin.load() if origin else Settings()
    roles = frozenset({"collector"}) if how == "--collector" else ALL_ROLES
    lock = ServiceLock(folder, roles)
    shared = SharedSettings(settings, StatusSlots(), ["child"])
    reloader = Reloader(origin, shared, folder, service=suffix(roles))
    reloader.forget()

    def apply(_settings: Settings, _slots: StatusSlots) -> None:
        if how == "--fails":
            raise LookupError("no luck")

    def run(lifeline: Lifeline) -> None:
        follower = SettingsFollower(shared, "child", apply)
        follower.ready()
        while not select.select([lifeline.parent_pipe], [], [], 0.02)[0]:
            lifeline.beat()
            follower.tick()

    def ready() -> None:
        lock.show()
        print("ready", flush=True)

    hangups: dict[str, Callable[[], None]] = {"--deaf": lambda: None, "--dies": lambda: os._exit(3)}
    Supervisor(
        [Child("child", run)],
        grace_seconds=1.0,
        on_ready=ready,
        on_stop=lock.hide,
        on_start=lambda child: None,
        on_hangup=hangups.get(how, reloader.request),
        on_tick=reloader.tick,
    ).run()
    lock.close()


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    main(Path(given[0]), Path(given[1]) if len(given) > 1 else None, sys.argv[-1])
