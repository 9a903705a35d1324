"""Alembic migrations: what brings a database, empty or old, to the schema in `tables.py`."""
