"""From one answered request to logs, usage and an invoice.

segments   the format of segment files, and reading them
spool      the writing end: one worker's segment files
collector  spool -> store, exactly once: blocks, usage and the read offsets in one transaction
lock       one collector for one spool
doctor     whether spool, logs, usage and invoices agree

What a record is, what it costs and how it is stored are pure and stand in `core/entries.py`, `posting.py`,
`pricing.py` and `blocks.py`.
"""
