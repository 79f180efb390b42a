-- The writer on SQLite. Reads take sets as JSON lists of ids; writes run once per row. BEGIN IMMEDIATE is the lock.

-- name: begin
BEGIN IMMEDIATE;

-- name: lock_wallets
SELECT id, posted, held, overdraft_limit, state = 'open', next_grant_change_at
FROM billing_wallet WHERE id IN (SELECT value FROM json_each(?));

-- name: lock_holds
SELECT id, wallet_id, state, amount, owner, reserved_at
FROM billing_hold WHERE id IN (SELECT value FROM json_each(?));

-- name: read_grants
SELECT id, wallet_id, remaining, effective_at, expires_at, amount, voided_at IS NOT NULL
FROM billing_creditgrant
WHERE wallet_id IN (SELECT value FROM json_each(?)) AND remaining > 0 AND voided_at IS NULL
ORDER BY wallet_id, priority, expires_at IS NULL, expires_at, kind = 'paid', effective_at, id;

-- What a true-up gives back may go to a grant that has nothing left.
-- name: read_every_grant
SELECT id, wallet_id, remaining, effective_at, expires_at, amount, voided_at IS NOT NULL
FROM billing_creditgrant WHERE wallet_id IN (SELECT value FROM json_each(?))
ORDER BY wallet_id, priority, expires_at IS NULL, expires_at, kind = 'paid', effective_at, id;

-- name: read_records
SELECT request, wallet, revision, charge, exact, reserved_at FROM billing_usagerecord
WHERE (day, request) IN (SELECT value ->> 1, value ->> 0 FROM json_each(?)) ORDER BY revision;

-- name: read_takings
SELECT request, amount, grant_id FROM billing_ledgertransfer
WHERE request IN (SELECT value FROM json_each(?)) AND code = 2 ORDER BY request, "order";

-- name: read_charges
SELECT request, charge FROM billing_usagerecord
WHERE (day, request) IN (SELECT value ->> 1, value ->> 0 FROM json_each(?)) ORDER BY revision;

-- name: insert_holds
INSERT INTO billing_hold (id, wallet_id, tenant, project, api_key, "user", model, deployment, card_version,
    multiplier_bp, owner, amount, facts, state, checkpoint, reserved_at, lease_until)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '{}', ?, ?);

-- name: extend_holds
UPDATE billing_hold SET amount = ? WHERE id = ?;

-- A checkpoint never falls: of each class the greater count stays.
-- name: renew_holds
UPDATE billing_hold SET lease_until = ?, checkpoint = (
    SELECT json_group_object(key, value) FROM (
        SELECT key, max(value) AS value FROM (
            SELECT key, value FROM json_each(billing_hold.checkpoint) UNION ALL SELECT key, value FROM json_each(?)
        ) GROUP BY key
    ))
WHERE id = ?;

-- name: move_wallets
UPDATE billing_wallet SET posted = posted + ?, held = held + ?, version = version + 1 WHERE id = ?;

-- name: insert_usage
INSERT INTO billing_usagerecord (id, day, request, revision, tenant, project, api_key, "user", end_user, wallet, model,
    deployment, endpoint, task, route, input_tokens, cache_read_tokens, cache_write_short_tokens,
    cache_write_long_tokens, output_tokens, reasoning_tokens, card_version, multiplier_bp, formula, charge, held, exact,
    waived, finish, ttft_ms, duration_ms, reserved_at, settled_at)
SELECT ?1, ?2, ?1, 0, h.tenant, h.project, h.api_key, h."user", coalesce(h.facts ->> 'end_user', ''), h.wallet_id,
    h.model, h.deployment, coalesce(h.facts ->> 'endpoint', ''), coalesce(h.facts ->> 'task', ''),
    coalesce(h.facts -> 'route', '{}'), ?5, ?6, ?7, ?8, ?9, ?10, h.card_version, h.multiplier_bp, ?15, ?3, h.amount, ?4,
    ?11, ?12, ?13, ?14, h.reserved_at, ?16
FROM (SELECT 1) LEFT JOIN billing_hold h ON h.id = ?1;

-- Everything but the usage, the charge and how it ended is as in the revision before.
-- name: insert_revisions
INSERT INTO billing_usagerecord (id, day, request, revision, tenant, project, api_key, "user", end_user, wallet, model,
    deployment, endpoint, task, route, input_tokens, cache_read_tokens, cache_write_short_tokens,
    cache_write_long_tokens, output_tokens, reasoning_tokens, card_version, multiplier_bp, formula, charge, held, exact,
    waived, finish, ttft_ms, duration_ms, reserved_at, settled_at)
SELECT ?1, ?3, ?2, ?4, r.tenant, r.project, r.api_key, r."user", r.end_user, r.wallet, r.model, r.deployment, r.endpoint,
    r.task, r.route, ?6, ?7, ?8, ?9, ?10, ?11, r.card_version, r.multiplier_bp, ?13, ?5, r.held, 1, r.waived,
    coalesce(nullif(?12, ''), r.finish), r.ttft_ms, r.duration_ms, r.reserved_at, ?14
FROM (SELECT 1) LEFT JOIN billing_usagerecord r ON r.day = ?3 AND r.request = ?2 AND r.revision = ?4 - 1;

-- name: insert_transfers
INSERT INTO billing_ledgertransfer (debit_id, credit_id, amount, code, request, "order", grant_id, effective_at, actor,
    reason)
VALUES ((SELECT id FROM billing_ledgeraccount WHERE wallet_id = ? AND kind = 'wallet'),
    (SELECT id FROM billing_ledgeraccount WHERE wallet_id IS NULL AND kind = 'usage'), ?, 2, ?, ?, ?, ?, '', '');

-- name: insert_adjustments
INSERT INTO billing_ledgertransfer (debit_id, credit_id, amount, code, request, "order", grant_id, effective_at, actor,
    reason)
SELECT CASE ?2 WHEN 'wallet' THEN a.id ELSE d.id END, CASE ?3 WHEN 'wallet' THEN a.id ELSE c.id END, ?6, 3, ?4, ?5, ?7,
    ?8, '', ''
FROM (SELECT 1)
LEFT JOIN billing_ledgeraccount a ON a.wallet_id = ?1 AND a.kind = 'wallet'
LEFT JOIN billing_ledgeraccount d ON d.wallet_id IS NULL AND d.kind = ?2
LEFT JOIN billing_ledgeraccount c ON c.wallet_id IS NULL AND c.kind = ?3;

-- name: note_grant_changes
UPDATE billing_wallet SET next_grant_change_at = ? WHERE id = ?;

-- name: take_grants
UPDATE billing_creditgrant SET remaining = remaining - ? WHERE id = ?;

-- name: delete_holds
DELETE FROM billing_hold WHERE id = ?;

-- name: insert_outbox
INSERT INTO billing_outboxevent (topic, payload, attempts) VALUES ('usage', ?, 0);

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;
