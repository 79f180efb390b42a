"""The OpenAPI document: which operations there are, that it is valid and its examples are, and who is served it."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import yaml
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.validation import validate_schema
from jsonschema import Draft202012Validator

from control.api.data_plane import BASE

# What clients are generated from: a line that goes or changes breaks them.
OPERATIONS = """
POST   /v1/chat/completions               chat_completions
POST   /v1/chat/completions/quote         chat_completions_quote
POST   /v1/responses                      responses
POST   /v1/responses/input_tokens         responses_input_tokens
POST   /v1/responses/quote                responses_quote
GET    /v1/responses/{id}                 responses_show
DELETE /v1/responses/{id}                 responses_delete
POST   /v1/responses/{id}/cancel          responses_cancel
GET    /v1/responses/{id}/input_items     responses_input_items
POST   /v1/messages                       messages
POST   /v1/messages/count_tokens          messages_count_tokens
POST   /v1/messages/quote                 messages_quote
POST   /v1/completions                    completions
POST   /v1/completions/quote              completions_quote
POST   /v1/embeddings                     embeddings
POST   /v1/embeddings/quote               embeddings_quote
POST   /v1/rerank                         rerank
POST   /v1/score                          score
POST   /v1/classify                       classify
POST   /v1/tokenize                       tokenize
POST   /v1/detokenize                     detokenize
POST   /v1/files                          files_create
GET    /v1/files                          files_list
GET    /v1/files/{id}                     files_show
DELETE /v1/files/{id}                     files_delete
GET    /v1/files/{id}/content             files_content
POST   /v1/batches                        batches_create
GET    /v1/batches                        batches_list
GET    /v1/batches/{id}                   batches_show
POST   /v1/batches/{id}/cancel            batches_cancel
POST   /v1/adapters                       adapters_create
GET    /v1/adapters                       adapters_list
GET    /v1/adapters/{id}                  adapters_show
DELETE /v1/adapters/{id}                  adapters_delete
GET    /v1/models                         models_list
GET    /v1/models/{id}                    models_show
GET    /v1/usage/{id}                     usage_of_request
GET    /v1/key                            key_show
GET    /health                            health
GET    /api/v1/audit/                     audit_list
GET    /api/v1/budgets/                   budgets_list
POST   /api/v1/budgets/                   budgets_create
GET    /api/v1/budgets/{id}/              budgets_retrieve
PATCH  /api/v1/budgets/{id}/              budgets_change
DELETE /api/v1/budgets/{id}/              budgets_remove
GET    /api/v1/keys/                      keys_list
POST   /api/v1/keys/                      keys_create
GET    /api/v1/keys/{id}/                 keys_retrieve
PATCH  /api/v1/keys/{id}/                 keys_change
POST   /api/v1/keys/{id}/end-previous/    keys_end_previous
POST   /api/v1/keys/{id}/revoke/          keys_revoke
POST   /api/v1/keys/{id}/rotate/          keys_rotate
GET    /api/v1/members/                   members_list
POST   /api/v1/members/                   members_invite
PATCH  /api/v1/members/{id}/              members_change
DELETE /api/v1/members/{id}/              members_remove
GET    /api/v1/projects/                  projects_list
POST   /api/v1/projects/                  projects_create
GET    /api/v1/operator/reratings/       operator_reratings_list
POST   /api/v1/operator/reratings/       operator_reratings_create
GET    /api/v1/operator/reratings/{id}/  operator_reratings_retrieve
POST   /api/v1/operator/reratings/{id}/commit/ operator_reratings_commit
POST   /api/v1/operator/reratings/{id}/stop/ operator_reratings_stop
POST   /api/v1/operator/requests/{id}/refund/ operator_requests_refund
GET    /api/v1/operator/tenants/{slug}/grants/ operator_grants_list
POST   /api/v1/operator/tenants/{slug}/grants/ operator_grants_create
DELETE /api/v1/operator/tenants/{slug}/grants/{id}/ operator_grants_cancel
GET    /api/v1/operator/tenants/{slug}/invoices/ operator_invoices_list
POST   /api/v1/operator/tenants/{slug}/invoices/{id}/pay/ operator_invoices_pay
POST   /api/v1/operator/tenants/{slug}/invoices/{id}/void/ operator_invoices_void
GET    /api/v1/operator/tenants/{slug}/recurring-grants/ operator_recurring_list
POST   /api/v1/operator/tenants/{slug}/recurring-grants/ operator_recurring_create
PATCH  /api/v1/operator/tenants/{slug}/recurring-grants/{id}/ operator_recurring_change
POST   /api/v1/routes/explain/            routes_explain
GET    /api/v1/seal-keys/                 seal_keys_list
GET    /api/v1/statements/                statements_list
GET    /api/v1/statements/{month}/{form}/ statement_read
GET    /api/v1/tenant/                    tenant_read
GET    /api/v1/tenant/export/             tenant_export
PATCH  /api/v1/tenant/                    tenant_change
GET    /api/v1/usage/                     usage_list
POST   /api/v1/vouchers/redeem/           vouchers_redeem
GET    /api/v1/wallet/                    wallet_retrieve
GET    /api/v1/wallet/transfers/          wallet_transfers_list
"""


@pytest.fixture(scope="module")
def document():
    return SchemaGenerator().get_schema(request=None, public=True)


def operations(document):
    """(method, path, operation) of each."""
    return [(method, path, one) for path, methods in document["paths"].items() for method, one in methods.items()]


def examples(node, *, of_names=False):
    """(schema, example) of each example below a node of the document."""
    if isinstance(node, list):
        for child in node:
            yield from examples(child)
    if not isinstance(node, dict):
        return
    if not of_names:  # a mapping of names to schemas may have one that is called "example"
        several = node.get("examples", [])
        named = [one["value"] for one in several.values()] if isinstance(several, dict) else several
        for example in [*named, *([node["example"]] if "example" in node else [])]:
            yield node.get("schema", node), example
    for name, child in node.items():
        if of_names or name not in ("example", "examples", "default", "enum", "const"):
            yield from examples(child, of_names=not of_names and name in ("properties", "schemas"))


def test_the_operations_are_these(document):
    found = Counter((method.upper(), path, one["operationId"]) for method, path, one in operations(document))
    assert found == Counter(tuple(line.split()) for line in OPERATIONS.strip().splitlines())
    assert len({identifier for _, _, identifier in found}) == len(found)


def test_schema_is_valid_openapi(document):
    validate_schema(document)


def test_every_example_fits_its_schema(document):
    found = list(examples(document))
    for schema, example in found:
        Draft202012Validator({**schema, "components": document["components"]}).validate(example)
    takes_json = [
        path
        for _, path, one in operations(document)
        if path.startswith("/v1/") and "application/json" in one.get("requestBody", {}).get("content", {})
    ]
    assert len(found) >= len(takes_json) > 0
    for path in takes_json:
        assert "example" in document["paths"][path]["post"]["requestBody"]["content"]["application/json"], path


def test_patterns_are_those_of_clients_languages(document):
    """Python's end of a text is a letter Z elsewhere: generated clients refused every function's name."""
    assert "\\Z" not in str(document)


@pytest.mark.django_db
def test_what_is_served_is_the_document_to_anybody(document):
    expected = json.loads(OpenApiJsonRenderer().render(document).replace(BASE.encode(), b"http://testserver"))
    as_yaml, as_json = (Client().get(f"/api/schema/{query}") for query in ("", "?format=json"))
    assert (as_yaml.status_code, as_json.status_code) == (200, 200)
    assert yaml.safe_load(as_yaml.content) == as_json.json() == expected


def test_every_field_of_both_planes_is_described(document):
    bare = [
        f"{component}.{name}"
        for component, schema in document["components"]["schemas"].items()
        for name, field in schema.get("properties", {}).items()
        if not field.get("description")
    ]
    assert bare == []


def test_a_management_key_is_named_where_it_reads_keys_alone(document):
    shown = {
        (method, path): {name for one in operation["security"] for name in one}
        for method, path, operation in operations(document)
        if path.startswith("/api/v1/keys/")
    }
    for (method, _), names in shown.items():
        assert names == {"adminKey", "session"} | ({"managementKey"} if method == "get" else set())


def test_what_no_key_may_do_names_none(document):
    members = (("/api/v1/members/", "post"), ("/api/v1/members/{id}/", "patch"), ("/api/v1/members/{id}/", "delete"))
    for path, method in (*members, ("/api/v1/tenant/", "patch")):
        assert document["paths"][path][method]["security"] == [{"session": []}]
