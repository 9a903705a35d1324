"""From one answered request to logs, usage and an invoice.

segments   the format of segment files, and reading them
spool      the writing end: one worker's segment files
collector  spool -> store, exactly once: rows, usage and the read offsets in one transaction
lock       one collector for one spool
doctor     whether spool, logs, usage and invoices agree

What an entry is and what it costs are pure and stand in `core/entries.py`, `posting.py` and `pricing.py`.
"""
