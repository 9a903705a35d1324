"""Where state lives: small ports, and the backends behind them.

base        the ports: Directory and Meters (the gateway's), ControlStore with its Repositories, LogBook and
            AccountBook (the control plane's), LedgerBook (the collector's)
tables      the schema of the control data, in SQLAlchemy Core
migrations  brings both databases to their schemas, with Alembic
sql         the ports over SQLAlchemy
repository  the tables of the control data, all by one small class
ledger_tables  the schema of the ledger, in a file of its own
ledger_engine  what of the ledger differs between SQLite and PostgreSQL
ledger      what the collector writes;  ledger_blocks: blocks, their joining and their end;  ledger_shared: what
            small teams add, until it is sorted into blocks;  ledger_usage: usage and latencies, appended and
            folded
logbook     reading the ledger
accountbook usage and invoices of the ledger
ledger_facts  all of the ledger added up, for the doctor
caps        who is stopped by a cap, and last uses
sqlite      what only SQLite has: its address and its pragmas
postgresql  what only PostgreSQL has: its address, transactions, locks and notifications
engines     which of them an address names
valkey      shared limits and answers, in Valkey
move        from SQLite to PostgreSQL, whole
statements  SQL with names of tables that are known only when it runs
retries     whether a request may be retried after the database undid its transaction
upgrade     brings a database to the schema with Alembic

Only `processes` names a backend; the planes know `base` alone.
"""
