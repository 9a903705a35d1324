"""One file for each resource. All its rules are there; each operation checks `core/roles.py` first.

throttle     failed attempts, and the waits after them
accounts     people and their passwords
email_changes  a new address of one's own account
factors      codes of an authenticator app, recovery codes, passkeys
logins       browser sessions, the tool's logins, personal access tokens
devices      the device login (RFC 8628)
teams        teams and their members
invitations  links that let people in
tokens       API tokens
domains      whitelisted domains, their proofs and take-overs
admin        what the operator does from the machine itself, without a login
operator     what an operator sees and sets: upstreams, processes, teams and their terms
audit        reading the audit log
logs         reading the request logs
networks     the networks that are served, and their state
usage        what a team used, and what it costs
timelines    its requests over time
billing      its spending cap, and whom to alert
alerts       sending the alerts
invoices     what a team owes for a month, final when the month is closed
reports      reporting to a payment service
replays      Idempotency-Key
sweep        throwing away what has expired
job_leases   which node does a job that is done once for all
"""
