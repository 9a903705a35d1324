"""How Alembic reaches the database: over the connection that `sqlite.migrate` hands in."""

from __future__ import annotations

from alembic import context

from tollgate.store.ledger_tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
