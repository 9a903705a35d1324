"""The control plane: who may manage what, from a browser, a terminal or a program.

problems   the error tree: what the API answers, with status, reason and extras
service_context  what all services share: the store, the clock, who acts, the audit log, membership of a team
services/  one file for each thing that is managed; every rule lives here
passwords  Argon2id, off the event loop and bounded
mail       SMTP, where it is set
oidc, oidc_rules  signing in with an OpenID Connect provider
outbound   fetching from hosts that users name, never from private addresses
webhooks   which addresses of webhooks are accepted
stripe     two calls of Stripe's API
safe_connect  connecting to nothing but the addresses that were checked
versions   entity tags, for `If-Match`
proofs     that a team owns a domain: DNS TXT and /.well-known/tollgate.txt
api/       Litestar routes under /api/v1: parse, call one service, render
console/   server-rendered pages that work without JavaScript
plane      all services, made from the settings and the store
app        puts these together as one ASGI application

Runs in one process of its own (see docs/decisions/0010): nothing in here may be imported by the gateway.
"""
