"""The control plane: who may manage what, from a browser, a terminal or a program.

problems   the error tree: status, reason and extras of each refusal
service_context  what all services share: the store, the clock, who acts, the audit log, membership of a team
services/  one file for each resource, with all its rules
passwords  Argon2id, off the event loop and bounded
mail       SMTP, if configured
oidc, oidc_rules  signing in with an OpenID Connect provider
outbound   fetching from hosts that users choose, never from private addresses
webhooks   which webhook URLs are accepted
stripe     two calls of Stripe's API
safe_connect  connecting only to addresses that were checked
versions   entity tags, for `If-Match`
proofs     that a team owns a domain: DNS TXT and /.well-known/tollgate.txt
api/       Litestar routes under /api/v1: parse, call one service, render
console/   server-rendered pages that work without JavaScript
plane      all services, created from the settings and the store
app        assembles one ASGI application

Runs in one process of its own (see docs/decisions/0010): nothing in here may be imported by the gateway.
"""
