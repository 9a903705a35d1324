"""How Alembic reaches the database: over the connection that `upgrade` hands in, or not at all for a plan."""

from __future__ import annotations

from alembic import context

from tollgate.store.ledger_tables import metadata

given = context.config.attributes
if given["connection"] is None:
    context.configure(dialect_name=given["dialect"], target_metadata=metadata)
else:
    context.configure(connection=given["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
