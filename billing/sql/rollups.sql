-- Adds what the named revisions changed, each less the one before it, to the rollup of its hour, key and model, and to the
-- sums of its day and model. What each changed of the operator's cost comes with its name. Only a first record is a request.
-- Reasoning is output here. Rows come in one order, in which two consumers lock them. For both databases. The rollups have a
-- partial unique index for rows with a key and one for those without: {key} and {condition} name either.

-- name: changes
WITH named AS ({named}), changes AS (
    SELECT n.day, n.hour, r.tenant, r.project, r.api_key, r.model, CASE n.revision WHEN 0 THEN 1 ELSE 0 END AS requests,
        r.input_tokens - coalesce(e.input_tokens, 0) AS input_tokens,
        r.cache_read_tokens - coalesce(e.cache_read_tokens, 0) AS cache_read_tokens,
        r.output_tokens + r.reasoning_tokens - coalesce(e.output_tokens + e.reasoning_tokens, 0) AS output_tokens,
        r.charge - coalesce(e.charge, 0) AS charge, n.cost, n.costed
    FROM named n
    JOIN billing_usagerecord r ON r.day = n.day AND r.request = n.request AND r.revision = n.revision
    LEFT JOIN billing_usagerecord e ON e.day = n.day AND e.request = n.request AND e.revision = n.revision - 1
)

-- name: add
INSERT INTO billing_usagerollup AS present (id, hour, tenant, project, api_key, model, requests, input_tokens,
    cache_read_tokens, output_tokens, charge, cost, costed)
SELECT {id}, hour, tenant, project, api_key, model, sum(requests), sum(input_tokens), sum(cache_read_tokens),
    sum(output_tokens), sum(charge), sum(cost), sum(costed)
FROM changes WHERE api_key IS {condition}
GROUP BY hour, tenant, project, api_key, model ORDER BY hour, tenant, project, api_key, model
ON CONFLICT (hour, tenant, project, {key}model) WHERE api_key IS {condition} DO UPDATE SET
    requests = present.requests + excluded.requests, input_tokens = present.input_tokens + excluded.input_tokens,
    cache_read_tokens = present.cache_read_tokens + excluded.cache_read_tokens,
    output_tokens = present.output_tokens + excluded.output_tokens, charge = present.charge + excluded.charge,
    cost = present.cost + excluded.cost, costed = present.costed + excluded.costed

-- name: add_days
INSERT INTO billing_usageday AS present (day, model, requests, input_tokens, cache_read_tokens, output_tokens, charge,
    cost, costed)
SELECT day, model, sum(requests), sum(input_tokens), sum(cache_read_tokens), sum(output_tokens), sum(charge), sum(cost),
    sum(costed)
FROM changes WHERE true GROUP BY day, model ORDER BY day, model
ON CONFLICT (day, model) DO UPDATE SET
    requests = present.requests + excluded.requests, input_tokens = present.input_tokens + excluded.input_tokens,
    cache_read_tokens = present.cache_read_tokens + excluded.cache_read_tokens,
    output_tokens = present.output_tokens + excluded.output_tokens, charge = present.charge + excluded.charge,
    cost = present.cost + excluded.cost, costed = present.costed + excluded.costed
