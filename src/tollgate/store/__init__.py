"""Where state lives: small ports, and the backends behind them.

base        the ports: Directory (what the gateway reads), Registry (what changes it), Meters (rate limits)
tables      one SQLAlchemy Core schema;  migrations/ (Alembic) brings a database to it
sql         Directory and Registry over SQLAlchemy
sqlite      what only SQLite has: its address and its pragmas
upgrade     brings a database to the schema, in a process of its own
shared      Meters in memory that the workers of one machine share
pepper      the key under which tokens are hashed, made once

Only `server.py` names a backend; the planes know `base` alone.
"""
