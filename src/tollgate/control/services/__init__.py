"""One file for each resource. All its rules are there; each operation checks `core/roles.py` first.

throttle     failed attempts
accounts     people and their passwords
logins       browser sessions, the tool's logins, personal access tokens
devices      the device login (RFC 8628)
teams        teams and their members
invitations  links that let people in
tokens       API tokens
domains      whitelisted domains, their proofs and take-overs
operator     what the operator does from the machine itself
audit        reading the audit log
logs         reading the request logs
usage        what a team used, and what it costs
billing      its spending cap, and whom to alert
alerts       sending the alerts
invoices     what a team owes for a month, final when the month is closed
reports      reporting to a payment service
replays      Idempotency-Key
sweep        throwing away what has expired
"""
