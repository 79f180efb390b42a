"""Remedies for errors of the API: for people, where the message doesn't say them already."""

from __future__ import annotations

_BY_CODE = {
    "access_changed": "Send it again: the client waits for the time that retry-after names.",
    "address_not_allowed": "Send it from an address that the key is for, or let an owner change the key's networks.",
    "api_key_expired": "Make a new key, or rotate one that lasts longer.",
    "api_key_revoked": "Make a new key: a revoked one never works again.",
    "concurrency_limit_exceeded": "Send fewer at once, or wait for retry-after. Plans with more are the operator's.",
    "context_length_exceeded": "Shorten the conversation, or take a model with a longer context (page Models).",
    "budget_exceeded": "Wait until the budget resets, or let who set it raise it. Nothing ran and nothing was charged.",
    "credit_balance_exhausted": "Ask the owner or operator for credit. Nothing ran and nothing was charged.",
    "credit_held": "Wait: other requests of the tenant hold the rest of the credit until they end.",
    "gateway_lock_lost": "Send it again: another gateway takes it.",
    "insufficient_scope": "Use a key with the scope that the message names, or let an owner add it to this key.",
    "internal_error": "Send it again. If it comes back, give its id to the operator: the log has the cause.",
    "invalid_type": "Correct the field that is named.",
    "invalid_value": "Correct the field that is named.",
    "invalid_json": "Send JSON in UTF-8: the SDKs do.",
    "key_concurrency_limit_exceeded": "Send fewer at once with this key, or let an owner change the key's limit.",
    "key_rate_limit_exceeded": "Wait for retry-after, or let an owner change the key's limit.",
    "key_spend_limit_exceeded": "Wait for the next period, or let an owner change what this key may spend.",
    "method_not_allowed": "Use a method that the message names; the reference of the API shows each endpoint's.",
    "missing_required_parameter": "Send the field that is named.",
    "model_not_allowed": "Take a model that plan and key have, or ask for another plan or a key for this model.",
    "model_not_found": "Take auto or a name of the page Models; the operator can give models other services' names.",
    "no_ready_deployment": "Send it again in a moment: the model's worker is starting or gone; the operator sees why.",
    "no_subscription": "Ask the operator for a plan.",
    "project_inactive": "Use a key of another project, or let an owner open the project again.",
    "rate_limit_exceeded": "Wait for retry-after, as SDKs do. Plans with more are the operator's.",
    "request_exceeds_burst": "Send a smaller request: it needs more at once than the plan ever has.",
    "request_too_large": "Send less in one request.",
    "server_draining": "Send it again: another gateway takes it, or this one once it is back.",
    "tenant_inactive": "The tenant is suspended: ask the operator why.",
    "unknown_endpoint": "Correct the base URL: that of OpenAI's SDKs ends with /v1, that of Anthropic's doesn't.",
    "unknown_parameter": "Leave the field out, or correct its name: it would have no effect.",
    "unsupported_parameter": "Leave the field out: it would have no effect.",
    "wallet_frozen": "Ask the operator why the credit is frozen.",
}
_BY_STATUS = {
    400: "Correct the request as the message says; the same one is refused again.",
    401: "Use a valid key.",
    403: "Ask an owner of the tenant, or the operator.",
    404: "Correct the name or address: nothing of this tenant has it.",
    429: "Wait for retry-after, as SDKs do by themselves.",
}


def advice_for(status: int, code: str) -> str:
    """Return what to do about an error."""
    known = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if known is not None:
        return known
    if status >= 500:
        return "Send it again in a moment. If it comes back, give this page's id to the operator."
    return _BY_STATUS[400]
