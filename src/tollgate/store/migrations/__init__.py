"""Alembic migrations: `control/` leads to the schema in `tables.py`, `ledger/` to that in `ledger_tables.py`.

Migrations go forward alone: an operator who goes back to an older version restores a backup.
"""
