"""The reference page of the settings, `docs/reference/settings.md`, made from their definitions.

Owns the page's words and layout. It must not name a single setting: those come from `settings/schema.py`.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING

from tollgate.settings.environment import RESERVED
from tollgate.settings.schema import Setting, describe, help_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_INTRODUCTION = """\
# Settings

<!-- Made from src/tollgate/settings/model.py; change the definitions there, then run `make reference`. -->

Settings come from one TOML file and from environment variables; a variable wins over the file, the file
over the default. The file is the one given by `--config`, else by `TOLLGATE_CONFIG`, else `tollgate.toml`
in the current folder. [`tollgate.example.toml`](../../tollgate.example.toml) is one to start from.

- `tollgate config check` says what is wrong, with the line or variable, or which networks are served.
- `tollgate config show` lists every value and where it came from, secrets masked.

A variable's name is `TOLLGATE_`, then the key in capitals with `__` between its levels: `server.port` is
`TOLLGATE_SERVER__PORT`. A string is taken as it is; anything else is written as in TOML: `true`, `30.0`,
`["10.0.0.0/8"]`. A hyphen in the name of a family or network becomes `_`. Upstreams are counted from 0, in
the order of the file, so a single secret can be kept out of it:

```sh
TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAMS__0__URL=https://eth-mainnet.example-provider.com/YOUR-KEY
TOLLGATE_FAMILIES__ETH__SEPOLIA__UPSTREAMS='[{name = "local", url = "http://127.0.0.1:8545"}]'
```

A relative path in the file starts at the file's folder; in a variable or a default, at the current folder.
"""


def settings_page() -> str:
    """Write the whole page as Markdown."""
    reserved = ", ".join(f"`{name}`" for name in sorted(RESERVED))
    parts = [_INTRODUCTION, f"These variables are no settings and are left alone: {reserved}.\n"]
    for table, rows in groupby(describe(), key=_table):
        # An array of tables is written with doubled brackets and without a number.
        header = f"[{table.removesuffix('[<n>]')}]" if table.endswith("[<n>]") else table
        title = f"`[{header}]`" if table else "Top level"
        about = help_of(table)
        parts.append(f"## {title}\n" + (f"\n{about}\n" if about else "") + f"\n{_rows(rows)}")
    return "\n".join(parts)


def _table(row: Setting) -> str:
    return row.key.rpartition(".")[0]


def _rows(rows: Iterable[Setting]) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for row in rows:
        name = row.key.rpartition(".")[2]
        default = "required" if row.required else f"`{json.dumps(row.default)}`"
        about = row.help + (" Masked when shown." if row.secret else "")
        lines.append(f"| `{name}` | {row.kind} | {default} | {about}<br>`{row.variable}` |")
    return "\n".join(lines) + "\n"
