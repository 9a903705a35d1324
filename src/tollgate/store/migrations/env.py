"""Connects Alembic to the database: over the connection that `upgrade` passes, or not at all for a plan."""

from __future__ import annotations

from alembic import context

given = context.config.attributes
if given["connection"] is None:
    context.configure(dialect_name=given["dialect"])
else:
    context.configure(connection=given["connection"], render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
