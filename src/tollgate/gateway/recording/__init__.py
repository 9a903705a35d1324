"""What is kept of each answered request.

journal    one record for the ledger of each request of a known team
counters   metrics of requests and calls
latencies  how long callers wait
spans      the attributes of a request's span
"""
