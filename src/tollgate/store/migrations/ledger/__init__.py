"""Of the ledger."""
