-- The writer on SQLite. Reads take sets as JSON lists of ids; writes run once per row, with what the rows share first.
-- BEGIN IMMEDIATE is the lock.

-- name: begin
BEGIN IMMEDIATE;

-- Another number than before once another connection has written to the file.
-- name: data_version
PRAGMA data_version;

-- name: lock_wallets
SELECT id, posted, held, overdraft_limit, state = 'open', next_grant_change_at, version, closed_until, windows, pools
FROM billing_wallet WHERE id IN (SELECT value FROM json_each(?));

-- name: lock_holds
SELECT id, wallet_id, state, amount, owner, reserved_at, windows, model
FROM billing_hold WHERE id IN (SELECT value FROM json_each(?));

-- When the clock went back: what these wallets' holds say must not lie ahead of it.
-- name: redate_holds
UPDATE billing_hold SET reserved_at = ?
WHERE wallet_id IN (SELECT value FROM json_each(?)) AND reserved_at > ?;

-- name: read_open_holds
SELECT id, wallet_id, state, amount, owner, reserved_at, windows, model
FROM billing_hold WHERE wallet_id IN (SELECT value FROM json_each(?));

-- name: read_grants
SELECT id, wallet_id, remaining, effective_at, expires_at, amount, voided_at IS NOT NULL, priority, kind, restriction,
    rollover, rollover_until
FROM billing_creditgrant
WHERE wallet_id IN (SELECT value FROM json_each(?)) AND remaining > 0 AND voided_at IS NULL;

-- What a correction gives back may go to a grant that has nothing left.
-- name: read_every_grant
SELECT id, wallet_id, remaining, effective_at, expires_at, amount, voided_at IS NOT NULL, priority, kind, restriction,
    rollover, rollover_until
FROM billing_creditgrant WHERE wallet_id IN (SELECT value FROM json_each(?));

-- name: read_scheduled
SELECT id, wallet_id, amount, begins_at, expires_at, priority, kind, source, reason, restriction, actor, rollover,
    rollover_until, paid_amount, currency, paid_reference
FROM billing_scheduledgrant WHERE wallet_id IN (SELECT value FROM json_each(?)) ORDER BY wallet_id, begins_at, id;

-- name: read_records
SELECT r.request, r.wallet, r.revision, r.charge, r.exact, r.reserved_at, r.windows, r.refunded, r.rerating, r.model
FROM billing_usagerecord r
WHERE (r.day, r.request) IN (SELECT value ->> 1, value ->> 0 FROM json_each(?)) ORDER BY r.revision;

-- The transfers of a charge (2), then of its corrections, which are numbered through: below zero what was given back.
-- name: read_burns
SELECT t.request, CASE d.kind WHEN 'wallet' THEN t.amount ELSE -t.amount END, t.grant_id, t.code
FROM billing_ledgertransfer t JOIN billing_ledgeraccount d ON d.id = t.debit_id
WHERE t.request IN (SELECT value FROM json_each(?)) AND t.code IN (2, 3, 9, 10, 12)
ORDER BY t.request, t.code <> 2, t."order";

-- name: read_charges
SELECT request, charge + refunded FROM billing_usagerecord
WHERE (day, request) IN (SELECT value ->> 1, value ->> 0 FROM json_each(?)) ORDER BY revision;

-- Windows that the wallet's row doesn't keep; one in which nothing was counted yet begins with zeros.
-- name: read_windows
SELECT b.wallet_id, b.number, asked.value ->> 2, b.amount, b.is_hard, coalesce(w.spent, 0), coalesce(w.held, 0)
FROM json_each(?) AS asked
JOIN billing_spendbudget b ON b.wallet_id = asked.value ->> 0 AND b.number = asked.value ->> 1
LEFT JOIN billing_budgetwindow w
    ON w.wallet_id = b.wallet_id AND w.number = b.number AND w.start = asked.value ->> 2;

-- name: insert_holds
INSERT INTO billing_hold (reserved_at, lease_until, id, wallet_id, tenant, project, api_key, windows, "user", model,
    deployment, card_version, multiplier_bp, owner, amount, facts, state, checkpoint)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '{}');

-- name: insert_grants
WITH g(id, wallet, kind, amount, priority, effective_at, expires_at, source, paid_amount, currency, paid_reference,
    restriction, rollover, rollover_until)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO billing_creditgrant (id, wallet_id, kind, amount, remaining, priority, effective_at, expires_at, source,
    paid_amount, currency, paid_reference, restriction, rollover, rollover_until)
SELECT g.id, g.wallet, g.kind, g.amount, g.amount, g.priority, g.effective_at, g.expires_at, g.source, g.paid_amount,
    g.currency, g.paid_reference, g.restriction, g.rollover, g.rollover_until
FROM g;

-- name: delete_scheduled
DELETE FROM billing_scheduledgrant WHERE id = ?;

-- name: extend_holds
UPDATE billing_hold SET amount = ? WHERE id = ?;

-- name: repin_holds
UPDATE billing_hold SET deployment = ?, card_version = ?, model = ?, multiplier_bp = coalesce(?, multiplier_bp),
    facts = ? WHERE id = ?;

-- The latest checkpoint counts as a whole: tokens may have become others of another class. An empty one says nothing.
-- name: renew_holds
UPDATE billing_hold SET lease_until = d.lease_until,
    checkpoint = CASE d.checkpoint WHEN '{}' THEN billing_hold.checkpoint ELSE d.checkpoint END
FROM (SELECT ? AS lease_until, ? AS id, ? AS checkpoint) AS d WHERE billing_hold.id = d.id;

-- name: move_wallets
UPDATE billing_wallet SET posted = posted + ?, held = held + ?, version = version + 1,
    windows = coalesce(?, windows), pools = coalesce(?, pools) WHERE id = ?;

-- name: put_windows
INSERT INTO billing_budgetwindow (wallet_id, number, start, spent, held) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (wallet_id, number, start) DO UPDATE SET spent = excluded.spent, held = excluded.held;

-- A hold that isn't there leaves NULLs, which the table refuses.
-- name: insert_usage
WITH c(formula, settled_at, request, day, charge, exact, input_tokens, cache_read_tokens, cache_write_short_tokens,
    cache_write_long_tokens, output_tokens, reasoning_tokens, waived, finish, ttft_ms, duration_ms, route, promise)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO billing_usagerecord (id, day, request, revision, tenant, project, api_key, budget, windows, "user", end_user, wallet,
    model, deployment, endpoint, task, route, input_tokens, cache_read_tokens, cache_write_short_tokens,
    cache_write_long_tokens, output_tokens, reasoning_tokens, card_version, multiplier_bp, formula, charge, held, exact,
    waived, finish, ttft_ms, duration_ms, promise, reserved_at, settled_at)
SELECT c.request, c.day, c.request, 0, h.tenant, h.project, h.api_key,
    coalesce(h.budget, '00000000000000000000000000000000'), h.windows, h."user", coalesce(h.facts ->> 'end_user', ''), h.wallet_id,
    h.model, h.deployment, coalesce(h.facts ->> 'endpoint', ''), coalesce(h.facts ->> 'task', ''),
    coalesce(c.route, h.facts -> 'route', '{}'), c.input_tokens, c.cache_read_tokens, c.cache_write_short_tokens,
    c.cache_write_long_tokens, c.output_tokens, c.reasoning_tokens, h.card_version, h.multiplier_bp, c.formula,
    c.charge, h.amount, c.exact, c.waived, c.finish, c.ttft_ms, c.duration_ms, c.promise, h.reserved_at,
    c.settled_at
FROM c LEFT JOIN billing_hold h ON h.id = c.request;

-- What isn't given is as in the revision before; a refund prices nothing anew.
-- name: insert_revisions
WITH c(formula, settled_at, id, request, day, revision, charge, refunded, input_tokens, cache_read_tokens,
    cache_write_short_tokens, cache_write_long_tokens, output_tokens, reasoning_tokens, finish, exact, card_version,
    multiplier_bp, rerating)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO billing_usagerecord (id, day, request, revision, tenant, project, api_key, budget, windows, "user", end_user, wallet,
    model, deployment, endpoint, task, route, input_tokens, cache_read_tokens, cache_write_short_tokens,
    cache_write_long_tokens, output_tokens, reasoning_tokens, card_version, multiplier_bp, formula, charge, refunded,
    rerating, held, exact, waived, finish, ttft_ms, duration_ms, promise, reserved_at, settled_at)
SELECT c.id, c.day, c.request, c.revision, r.tenant, r.project, r.api_key, r.budget, r.windows, r."user", r.end_user, r.wallet,
    r.model, r.deployment, r.endpoint, r.task, r.route, coalesce(c.input_tokens, r.input_tokens),
    coalesce(c.cache_read_tokens, r.cache_read_tokens), coalesce(c.cache_write_short_tokens, r.cache_write_short_tokens),
    coalesce(c.cache_write_long_tokens, r.cache_write_long_tokens), coalesce(c.output_tokens, r.output_tokens),
    coalesce(c.reasoning_tokens, r.reasoning_tokens), coalesce(c.card_version, r.card_version),
    coalesce(c.multiplier_bp, r.multiplier_bp),
    CASE WHEN c.exact IS NULL AND c.card_version IS NULL THEN r.formula ELSE c.formula END, c.charge, c.refunded,
    coalesce(c.rerating, r.rerating), r.held, coalesce(c.exact, r.exact), r.waived, coalesce(nullif(c.finish, ''), r.finish),
    r.ttft_ms, r.duration_ms, r.promise, r.reserved_at, c.settled_at
FROM c LEFT JOIN billing_usagerecord r ON r.day = c.day AND r.request = c.request AND r.revision = c.revision - 1;

-- name: insert_charges
WITH b(booked_at, wallet, request, position, amount, source) AS (VALUES (?, ?, ?, ?, ?, ?))
INSERT INTO billing_ledgertransfer (debit_id, credit_id, amount, code, request, "order", grant_id, booked_at,
    effective_at, actor, reason)
SELECT (SELECT id FROM billing_ledgeraccount WHERE wallet_id = b.wallet AND kind = 'wallet'),
    (SELECT id FROM billing_ledgeraccount WHERE wallet_id IS NULL AND kind = 'usage'), b.amount, 2, b.request,
    b.position, b.source, b.booked_at, b.booked_at, '', ''
FROM b;

-- name: insert_transfers
WITH t(booked_at, wallet, debit, credit, amount, code, request, position, key, source, effective_at, actor, reason)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO billing_ledgertransfer (debit_id, credit_id, booked_at, amount, code, request, "order", key, grant_id,
    effective_at, actor, reason)
SELECT CASE t.debit WHEN 'wallet' THEN a.id ELSE d.id END, CASE t.credit WHEN 'wallet' THEN a.id ELSE c.id END,
    t.booked_at, t.amount, t.code, t.request, t.position, t.key, t.source, t.effective_at, t.actor, t.reason
FROM t
LEFT JOIN billing_ledgeraccount a ON a.wallet_id = t.wallet AND a.kind = 'wallet'
LEFT JOIN billing_ledgeraccount d ON d.wallet_id IS NULL AND d.kind = t.debit
LEFT JOIN billing_ledgeraccount c ON c.wallet_id IS NULL AND c.kind = t.credit;

-- name: void_grants
UPDATE billing_creditgrant SET expires_at = ?, voided_at = ?, rollover = NULL WHERE id = ?;

-- name: roll_grants
UPDATE billing_creditgrant SET rollover = ? WHERE id = ?;

-- name: take_grants
UPDATE billing_creditgrant SET remaining = remaining - ? WHERE id = ?;

-- name: end_grants
UPDATE billing_creditgrant SET expired_at = ? WHERE id = ?;

-- name: note_grant_changes
UPDATE billing_wallet SET next_grant_change_at = ? WHERE id = ?;

-- name: delete_holds
DELETE FROM billing_hold WHERE id = ?;

-- name: insert_outbox
INSERT INTO billing_outboxevent (topic, payload, attempts) VALUES ('usage', ?, 0);

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;
