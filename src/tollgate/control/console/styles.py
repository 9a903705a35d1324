"""All parts of the look on one page, for whoever changes it. In the demo alone."""

from __future__ import annotations

from litestar import Response
from litestar.exceptions import NotFoundException

from tollgate.control.console import charts
from tollgate.control.console.frame import open_frame, page
from tollgate.control.console.paths import HttpRequest, Plane, shown


@shown("/_styles")
async def styles_page(request: HttpRequest, plane: Plane) -> Response[str]:
    """All parts together."""
    # What the demo switches on, and no service that others can reach.
    if not plane.settings.whitelist.allow_localhost:
        raise NotFoundException
    frame = await open_frame(request, plane, title="Parts", crumbs=(("Console", "/console"),))
    frame.toast, frame.commands = "This is a toast.", ("tollgate --help",)
    return page(frame, "styles.html", spark=charts.sparkline([3, 5, 2, 8, 9, 4, 6, 7, 1, 0, 4, 9]))
