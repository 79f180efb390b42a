-- The writer on PostgreSQL. Sets travel as array literals; locks are taken in this order: wallets by id, holds by id.
-- Grants need no lock of their own: whoever changes them holds their wallet's. The clock (base/clock.py) is read after
-- the wallets' locks, so that it is later than any change that they waited for.

-- name: begin
BEGIN;

-- name: lock_wallets
SELECT id, posted, held, overdraft_limit, state = 'open', next_grant_change_at, version, closed_until, windows, pools
FROM billing_wallet WHERE id = ANY(%s::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: lock_holds
SELECT id, wallet_id, state, amount, owner, reserved_at, windows, model
FROM billing_hold WHERE id = ANY(%s::uuid[]) ORDER BY id FOR UPDATE;

-- Of wallets with a grant that has ended: nobody else changes their holds while the wallet is locked.
-- When the clock went back: what these wallets' holds say must not lie ahead of it.
-- name: redate_holds
UPDATE billing_hold h SET reserved_at = given.now FROM (SELECT %s::timestamptz AS now) AS given
WHERE h.wallet_id = ANY(%s::uuid[]) AND h.reserved_at > given.now;

-- name: read_open_holds
SELECT id, wallet_id, state, amount, owner, reserved_at, windows, model FROM billing_hold WHERE wallet_id = ANY(%s::uuid[]);

-- Of the ids that the locking reads did not return, those that exist: another transaction has locked them.
-- name: read_absent
SELECT id FROM billing_wallet WHERE id = ANY(%s::uuid[]) UNION ALL SELECT id FROM billing_hold WHERE id = ANY(%s::uuid[]);

-- name: read_grants
SELECT id, wallet_id, remaining, effective_at, expires_at, amount, voided_at IS NOT NULL, priority, kind, restriction,
    rollover, rollover_until
FROM billing_creditgrant WHERE wallet_id = ANY(%s::uuid[]) AND remaining > 0 AND voided_at IS NULL;

-- What a correction gives back may go to a grant that has nothing left.
-- name: read_every_grant
SELECT id, wallet_id, remaining, effective_at, expires_at, amount, voided_at IS NOT NULL, priority, kind, restriction,
    rollover, rollover_until
FROM billing_creditgrant WHERE wallet_id = ANY(%s::uuid[]);

-- What wallets get by time, in the order of time.
-- name: read_scheduled
SELECT id, wallet_id, amount, begins_at, expires_at, priority, kind, source, reason, restriction, actor, rollover,
    rollover_until, paid_amount, currency, paid_reference
FROM billing_scheduledgrant WHERE wallet_id = ANY(%s::uuid[]) ORDER BY wallet_id, begins_at, id;

-- name: read_records
SELECT r.request, r.wallet, r.revision, r.charge, r.exact, r.reserved_at, r.windows, r.refunded, r.rerating, r.model
FROM unnest(%s::uuid[], %s::date[]) AS asked(request, day)
JOIN billing_usagerecord r ON r.day = asked.day AND r.request = asked.request
ORDER BY r.revision;

-- The transfers of a charge (2), then of its corrections, which are numbered through: below zero what was given back.
-- name: read_burns
SELECT t.request, CASE d.kind WHEN 'wallet' THEN t.amount ELSE -t.amount END, t.grant_id, t.code
FROM billing_ledgertransfer t JOIN billing_ledgeraccount d ON d.id = t.debit_id
WHERE t.request = ANY(%s::uuid[]) AND t.code IN (2, 3, 9, 10, 12)
ORDER BY t.request, t.code <> 2, t."order";

-- Only asked for what was to be closed and has no hold (any more).
-- name: read_charges
SELECT r.request, r.charge + r.refunded
FROM unnest(%s::uuid[], %s::date[]) AS asked(request, day)
JOIN billing_usagerecord r ON r.day = asked.day AND r.request = asked.request
ORDER BY r.revision;

-- Windows that the wallet's row doesn't keep; one in which nothing was counted yet begins with zeros. Whoever changes
-- them, or the budgets, holds the wallet's lock.
-- name: read_windows
SELECT b.wallet_id, b.number, asked.start, b.amount, b.is_hard, coalesce(w.spent, 0), coalesce(w.held, 0)
FROM unnest(%s::uuid[], %s::int[], %s::bigint[]) AS asked(wallet, number, start)
JOIN billing_spendbudget b ON b.wallet_id = asked.wallet AND b.number = asked.number
LEFT JOIN billing_budgetwindow w ON w.wallet_id = asked.wallet AND w.number = asked.number AND w.start = asked.start;

-- name: insert_holds
INSERT INTO billing_hold (id, wallet_id, tenant, project, api_key, windows, "user", model, deployment, card_version,
    multiplier_bp, owner, amount, facts, state, checkpoint, reserved_at, lease_until)
SELECT r.*, 0, '{}'::jsonb, %s::timestamptz, %s::timestamptz
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::uuid[], %s::text[], %s::uuid[],
    %s::uuid[], %s::int[], %s::uuid[], %s::bigint[], %s::jsonb[]) AS r;

-- name: insert_grants
INSERT INTO billing_creditgrant (id, wallet_id, kind, amount, remaining, priority, effective_at, expires_at, source,
    paid_amount, currency, paid_reference, restriction, rollover, rollover_until)
SELECT g.id, g.wallet, g.kind, g.amount, g.amount, g.priority, g.effective_at, g.expires_at, g.source, g.paid_amount,
    g.currency, g.paid_reference, g.restriction, g.rollover, g.rollover_until
FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::bigint[], %s::smallint[], %s::timestamptz[], %s::timestamptz[],
    %s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::timestamptz[])
    AS g(id, wallet, kind, amount, priority, effective_at, expires_at, source, paid_amount, currency, paid_reference,
        restriction, rollover, rollover_until);

-- name: delete_scheduled
DELETE FROM billing_scheduledgrant WHERE id = ANY(%s::uuid[]);

-- name: extend_holds
UPDATE billing_hold h SET amount = d.amount
FROM unnest(%s::bigint[], %s::uuid[]) AS d(amount, id) WHERE h.id = d.id;

-- name: repin_holds
UPDATE billing_hold h SET deployment = d.deployment, card_version = d.card_version, model = d.model,
    multiplier_bp = coalesce(d.multiplier_bp, h.multiplier_bp), facts = d.facts
FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::int[], %s::jsonb[], %s::uuid[])
    AS d(deployment, card_version, model, multiplier_bp, facts, id)
WHERE h.id = d.id;

-- The latest checkpoint counts as a whole: tokens may have become others of another class. An empty one says nothing.
-- name: renew_holds
UPDATE billing_hold h SET lease_until = %s::timestamptz,
    checkpoint = CASE d.checkpoint WHEN '{}'::jsonb THEN h.checkpoint ELSE d.checkpoint END
FROM unnest(%s::uuid[], %s::jsonb[]) AS d(id, checkpoint) WHERE h.id = d.id;

-- name: move_wallets
UPDATE billing_wallet w SET posted = w.posted + d.posted, held = w.held + d.held, version = w.version + 1,
    windows = coalesce(d.windows, w.windows), pools = coalesce(d.pools, w.pools)
FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::uuid[]) AS d(posted, held, windows, pools, id)
WHERE w.id = d.id;

-- name: put_windows
INSERT INTO billing_budgetwindow (wallet_id, number, start, spent, held)
SELECT * FROM unnest(%s::uuid[], %s::int[], %s::bigint[], %s::bigint[], %s::bigint[])
ON CONFLICT (wallet_id, number, start) DO UPDATE SET spent = excluded.spent, held = excluded.held;

-- Instead of all reading and of move_wallets: a division by zero, and so nothing is written, unless all of these wallets
-- are as given and locked by nobody, and the clock is between the two moments.
-- name: move_known_wallets
WITH moved AS (
    UPDATE billing_wallet w SET posted = w.posted + g.posted, held = w.held + g.held, version = w.version + 1,
        windows = coalesce(g.windows, w.windows), pools = coalesce(g.pools, w.pools)
    FROM (
        SELECT known.id, g.posted, g.held, g.windows, g.pools
        FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::timestamptz[], %s::bigint[], %s::bigint[], %s::text[],
            %s::text[]) AS g(id, version, available, next_at, posted, held, windows, pools)
        JOIN billing_wallet known ON known.id = g.id
        WHERE known.version = g.version AND known.posted - known.held + known.overdraft_limit = g.available
            AND known.state = 'open' AND known.next_grant_change_at IS NOT DISTINCT FROM g.next_at
        ORDER BY known.id FOR NO KEY UPDATE OF known SKIP LOCKED
    ) AS g WHERE w.id = g.id RETURNING 1
)
SELECT 1 / (count(*) = %s::bigint AND ({clock}) >= %s::timestamptz AND ({clock}) < %s::timestamptz)::int FROM moved;

-- A hold that isn't there leaves NULLs, which the table refuses.
-- name: insert_usage
INSERT INTO billing_usagerecord (id, day, request, revision, tenant, project, api_key, budget, windows, "user", end_user, wallet,
    model, deployment, endpoint, task, route, input_tokens, cache_read_tokens, cache_write_short_tokens,
    cache_write_long_tokens, output_tokens, reasoning_tokens, card_version, multiplier_bp, formula, charge, held, exact,
    waived, finish, ttft_ms, duration_ms, promise, reserved_at, settled_at)
SELECT c.request, c.day, c.request, 0, h.tenant, h.project, h.api_key,
    coalesce(h.budget, '00000000-0000-0000-0000-000000000000'::uuid), h.windows, h."user", coalesce(h.facts ->> 'end_user', ''),
    h.wallet_id, h.model, h.deployment, coalesce(h.facts ->> 'endpoint', ''), coalesce(h.facts ->> 'task', ''),
    coalesce(c.route, h.facts -> 'route', '{}'::jsonb), c.input_tokens, c.cache_read_tokens, c.cache_write_short_tokens,
    c.cache_write_long_tokens, c.output_tokens, c.reasoning_tokens, h.card_version, h.multiplier_bp, %s::smallint,
    c.charge, h.amount, c.exact, c.waived, c.finish, c.ttft_ms, c.duration_ms, c.promise, h.reserved_at,
    %s::timestamptz
FROM unnest(%s::uuid[], %s::date[], %s::bigint[], %s::bool[], %s::int[], %s::int[], %s::int[], %s::int[], %s::int[],
    %s::int[], %s::bool[], %s::text[], %s::int[], %s::int[], %s::jsonb[], %s::jsonb[])
    AS c(request, day, charge, exact, input_tokens, cache_read_tokens, cache_write_short_tokens,
        cache_write_long_tokens, output_tokens, reasoning_tokens, waived, finish, ttft_ms, duration_ms, route, promise)
LEFT JOIN billing_hold h ON h.id = c.request;

-- What isn't given is as in the revision before; a refund prices nothing anew.
-- name: insert_revisions
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
    CASE WHEN c.exact IS NULL AND c.card_version IS NULL THEN r.formula ELSE given.formula END, c.charge, c.refunded,
    coalesce(c.rerating, r.rerating), r.held, coalesce(c.exact, r.exact), r.waived, coalesce(nullif(c.finish, ''), r.finish),
    r.ttft_ms, r.duration_ms, r.promise, r.reserved_at, given.settled_at
FROM (SELECT %s::smallint AS formula, %s::timestamptz AS settled_at) AS given
CROSS JOIN unnest(%s::uuid[], %s::uuid[], %s::date[], %s::smallint[], %s::bigint[], %s::bigint[], %s::int[], %s::int[],
    %s::int[], %s::int[], %s::int[], %s::int[], %s::text[], %s::bool[], %s::uuid[], %s::int[], %s::uuid[])
    AS c(id, request, day, revision, charge, refunded, input_tokens, cache_read_tokens, cache_write_short_tokens,
        cache_write_long_tokens, output_tokens, reasoning_tokens, finish, exact, card_version, multiplier_bp, rerating)
LEFT JOIN billing_usagerecord r ON r.day = c.day AND r.request = c.request AND r.revision = c.revision - 1;

-- name: insert_charges
INSERT INTO billing_ledgertransfer (debit_id, credit_id, amount, code, request, "order", grant_id, booked_at,
    effective_at, actor, reason)
SELECT a.id, (SELECT u.id FROM billing_ledgeraccount u WHERE u.kind = 'usage' AND u.wallet_id IS NULL), b.amount, 2,
    b.request, b.position, b.source, given.now, given.now, '', ''
FROM (SELECT %s::timestamptz AS now) AS given
CROSS JOIN unnest(%s::uuid[], %s::uuid[], %s::smallint[], %s::bigint[], %s::uuid[])
    AS b(wallet, request, position, amount, source)
LEFT JOIN billing_ledgeraccount a ON a.wallet_id = b.wallet AND a.kind = 'wallet';

-- name: insert_transfers
INSERT INTO billing_ledgertransfer (debit_id, credit_id, booked_at, amount, code, request, "order", key, grant_id,
    effective_at, actor, reason)
SELECT CASE t.debit WHEN 'wallet' THEN a.id ELSE d.id END, CASE t.credit WHEN 'wallet' THEN a.id ELSE c.id END,
    %s::timestamptz, t.amount, t.code, t.request, t.position, t.key, t.source, t.effective_at, t.actor, t.reason
FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::bigint[], %s::smallint[], %s::uuid[], %s::smallint[], %s::text[],
    %s::uuid[], %s::timestamptz[], %s::text[], %s::text[])
    AS t(wallet, debit, credit, amount, code, request, position, key, source, effective_at, actor, reason)
LEFT JOIN billing_ledgeraccount a ON a.wallet_id = t.wallet AND a.kind = 'wallet'
LEFT JOIN billing_ledgeraccount d ON d.wallet_id IS NULL AND d.kind = t.debit
LEFT JOIN billing_ledgeraccount c ON c.wallet_id IS NULL AND c.kind = t.credit;

-- name: void_grants
UPDATE billing_creditgrant g SET expires_at = d.expires_at, voided_at = d.voided_at, rollover = NULL
FROM unnest(%s::timestamptz[], %s::timestamptz[], %s::uuid[]) AS d(expires_at, voided_at, id) WHERE g.id = d.id;

-- name: roll_grants
UPDATE billing_creditgrant g SET rollover = d.left_over
FROM unnest(%s::bigint[], %s::uuid[]) AS d(left_over, id) WHERE g.id = d.id;

-- name: end_grants
UPDATE billing_creditgrant SET expired_at = %s::timestamptz WHERE id = ANY(%s::uuid[]);

-- name: note_grant_changes
UPDATE billing_wallet w SET next_grant_change_at = d.next_at
FROM unnest(%s::timestamptz[], %s::uuid[]) AS d(next_at, id) WHERE w.id = d.id;

-- name: take_grants
UPDATE billing_creditgrant g SET remaining = g.remaining - d.taken
FROM unnest(%s::bigint[], %s::uuid[]) AS d(taken, id) WHERE g.id = d.id;

-- name: delete_holds
DELETE FROM billing_hold WHERE id = ANY(%s::uuid[]);

-- name: insert_outbox
INSERT INTO billing_outboxevent (topic, payload, attempts) SELECT 'usage', payload, 0 FROM unnest(%s::jsonb[]) AS payload;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;
