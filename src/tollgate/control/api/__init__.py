"""The management API, `/api/v1`: parse a request, call one service, render its answer. No business rules.

operations  what an endpoint is: its route, and its part of the OpenAPI document
oauth_types the forms and answers of OAuth
access      the authenticated actor and the client's address
reading     bodies, forms and queries, each refusal naming the member
render      answers
creation    Idempotency-Key
errors      every exception as problem details (RFC 9457)
me, factors, teams, members, tokens, domains, logs, audit, usage, invoices, operator, service, oauth
            one file for each resource
exports     logs as files
rates       rate limits of the API and the console
openapi     the OpenAPI document, generated from the routes
docs        the same document as a page
"""
