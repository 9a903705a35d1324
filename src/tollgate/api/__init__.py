"""The management API, defined once: for each resource what can be sent, what is answered, and its routes.

base      what all definitions share: routes, pages, times
tokens    API tokens
domains   whitelist entries
teams     teams
members   members of a team, and invitations to it
logs      request logs;  audit: the audit log
service   the service itself, and the networks that it serves
roles     the roles of members
me        the caller's account, logins and personal access tokens
usage     usage of a team and its cost; its requests over time
billing   spending cap, alerts and the buyer
invoices  what a team owes for a month
factors   the caller's second factors: codes and passkeys

Services take the commands defined here, `control/api` serves the routes, the tool calls them, rows inherit the
settings, and the OpenAPI document, the options of the tool and the forms of the console are read from the types.

Needs msgspec and nothing else: no framework, no database and no module of the service may be imported.

Types are open: bounds and choices are in the schema of a member (`extra_json_schema`), not in its type, and
`control.commands` checks commands against them. An older tool must be able to read the answers of a
newer server; for the same reason a member that is added to an answer later has a default.
"""
