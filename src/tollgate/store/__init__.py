"""Where state lives: small ports, and the backends behind them.

base        the ports: Directory and UseBook (the gateway's), Office (the control plane's), Meters (rate limits)
tables      one SQLAlchemy Core schema;  migrations/ (Alembic) brings a database to it
sql         the ports over SQLAlchemy
rows        the Office's tables, all by one small class
uses        which tokens are in use, and how much of their cap is gone
sqlite      what only SQLite has: its address and its pragmas
upgrade     brings a database to the schema, in a process of its own
shared      Meters in memory that the workers of one machine share
pepper      the key under which tokens are hashed, made once

Only `server.py` names a backend; the planes know `base` alone.
"""
