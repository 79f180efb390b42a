-- For both databases.

-- name: add
INSERT INTO billing_reratingsum AS present (run_id, tenant, model, usage_class, requests, tokens, before, after)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (run_id, tenant, model, usage_class) DO UPDATE SET requests = present.requests + excluded.requests,
    tokens = present.tokens + excluded.tokens, before = present.before + excluded.before,
    after = present.after + excluded.after
