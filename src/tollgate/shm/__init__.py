"""Memory that all processes of one machine share. Made before they are forked, and without locks, which a killed
process could hold.

limits           GCRA state of every limit: each worker writes its own column and reads all
allowances       calls that teams with a spending cap may still make: taken by workers, granted by the collector
leases           the same where nodes share limits: what this node may use of each
upstream_status  heads, finality, reorganisations and the state of each upstream
metrics          what is counted, with its help text, and the cells of each process
alerts           alert rules over those metrics
"""
