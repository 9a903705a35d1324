"""From one answered request to logs, usage and an invoice.

segments   the format of segment files, and reading them
spool      writes one worker's segment files
collector  spool -> store, exactly once: blocks, usage and the read offsets in one transaction
granting   what teams with a cap may still call, granted to the workers of a node
lock       one collector for one spool
doctor     whether spool, logs, usage and invoices agree

Pure parts are in `core`: `entries.py` (records), `subjects.py` and `posting.py` (counting), `pricing.py`,
`blocks.py`.
"""
