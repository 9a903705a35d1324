"""Entries of the audit log hold the hash of the one before, and their own; older ones are linked as they stand."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from tollgate.core.audit_chain import AuditChain, chain_of, linked
from tollgate.core.people import AuditEntry

revision = "0008"
down_revision = "0007"

PAGE = 1_000
_NEW: dict[str, sa.types.TypeEngine[Any]] = {
    "chain": sa.String(32),
    "number": sa.Integer(),
    "previous": sa.String(64),
    "hash": sa.String(64),
}
_OLD_NAMES = [name for name in AuditEntry.__struct_fields__ if name not in _NEW]
_audit = sa.table("audit", *(sa.column(name) for name in AuditEntry.__struct_fields__))
_chains = sa.table("audit_chains", *(sa.column(name) for name in AuditChain.__struct_fields__))


def upgrade() -> None:
    for name, kind in _NEW.items():
        default = "0" if name == "number" else ""
        op.add_column("audit", sa.Column(name, kind, server_default=default, nullable=False))
    op.create_table(
        "audit_chains",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_chains"),
    )
    if not op.get_context().as_sql:
        _link()
    op.create_index("ix_audit_chain", "audit", ["chain", "number"], unique=True)


def downgrade() -> None:
    op.drop_index("ix_audit_chain", "audit")
    op.drop_table("audit_chains")
    for name in reversed(_NEW):
        op.drop_column("audit", name)


def _link() -> None:
    """Link the entries that are there, in the order of their making, a page at a time."""
    connection = op.get_bind()
    chains: dict[str, AuditChain] = {}
    order = sa.tuple_(_audit.c.created_at, _audit.c.id)
    query = sa.select(*(_audit.c[name] for name in _OLD_NAMES)).order_by(_audit.c.created_at, _audit.c.id)
    page = connection.execute(query.limit(PAGE)).mappings().all()
    while page:
        for row in page:
            old = AuditEntry(**row)
            name = chain_of(old.team_id)
            entry, chains[name] = linked(old, chains.get(name, AuditChain(name, old.created_at)))
            values = {each: getattr(entry, each) for each in _NEW}
            connection.execute(sa.update(_audit).where(_audit.c.id == entry.id).values(**values))
        last = sa.tuple_(page[-1]["created_at"], page[-1]["id"])
        page = connection.execute(query.where(order > last).limit(PAGE)).mappings().all()
    for chain in chains.values():
        connection.execute(
            sa.insert(_chains).values(**{name: getattr(chain, name) for name in chain.__struct_fields__})
        )
