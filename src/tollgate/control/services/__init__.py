"""One file for each resource. All its rules are there; each operation checks `core/roles.py` first.

throttle     failed attempts, and the waits that follow
accounts     people and their passwords
email_changes  changing the address of an account
factors      codes of an authenticator app, recovery codes, passkeys
logins       browser sessions, the tool's logins, personal access tokens
devices      the device login (RFC 8628)
teams        teams and their members
invitations  links with which people join
tokens       API tokens
domains      whitelisted domains, their proofs and take-overs
admin        what the operator does on the machine itself, without a login
operator     the operator's view and settings: upstreams, processes, teams and their terms
audit        reading the audit log
logs         reading the request logs
networks     the networks that are served, and their state
usage        a team's usage and its cost
timelines    its requests over time
billing      its spending cap and alert settings
alerts       alerts and their delivery
invoices     what a team owes for a month, final when the month is closed
reports      reporting to a payment service
replays      Idempotency-Key
sweep        deletes what has expired
job_leases   which node runs a job that one node does for all
"""
