"""The management API, `/api/v1`: parse a request, call one service, render its answer. No rule lives here.

operations  what an endpoint is: its route, and its part of the OpenAPI document
bodies      what requests bring
shapes      what answers show
money       what they show of usage, caps and invoices
access      the authenticated actor and the client's address
reading     bodies, forms and queries, each refusal naming the member
render      answers
creation    Idempotency-Key
errors      every exception as problem details (RFC 9457)
oauth …     one file for each thing that is managed
openapi     the OpenAPI document, written from the routes themselves
docs        the same document for people
"""
