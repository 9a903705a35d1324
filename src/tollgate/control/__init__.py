"""The control plane: who may manage what, from a browser, a terminal or a program.

problems   the error tree: what the API answers, with status, reason and extras
desk       what all services share: the store, the clock, who acts, the audit log, the door of a team
services/  one file for each thing that is managed; every rule lives here
passwords  Argon2id, off the event loop and bounded
mail       SMTP, where it is set
oidc       signing in with an OpenID Connect provider
outbound   fetching what a user named, without being led inside the house
webhooks   which addresses of webhooks are accepted
stripe     two calls of Stripe's API
paging     going through all rows of a table
pinned     connecting to nothing but the addresses that were checked
proofs     that a team owns a domain: DNS TXT and /.well-known/tollgate.txt
api/       Litestar routes under /api/v1: parse, call one service, render
console/   server-rendered pages that work without JavaScript
app        puts these together as one ASGI application

Runs in one process of its own (see docs/decisions/0010): nothing in here may be imported by the gateway.
"""
