"""The management API, `/api/v1`: parse a request, call one service, render its answer. No rule lives here.

operations  what an endpoint is: its route, and all that the OpenAPI document says of it
bodies      what requests bring
shapes      what answers show
money       what they show of usage, caps and invoices
access      who asks, and from where
reading     bodies, forms and queries, each refusal naming the member
render      answers
creation    Idempotency-Key
errors      every exception as problem details (RFC 9457)
oauth …     one file for each thing that is managed
openapi     the OpenAPI document, written from the routes themselves
docs        the same document for people
routes      puts these together
"""
