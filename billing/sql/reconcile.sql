-- Each statement returns a row (subject, detail) per contradiction; none when the rows agree. A check reads all rows, or those that
-- came since the last good one: {records} and {transfers} are the tables or these parts of them, {grants}, {windows} and {touched}
-- those that they may bear on, {theirs} the transfers of the touched and {filled} the grants that the transfers fill, {rollups} and
-- {summed} the sums of their hours and all records of these, {days} and {of_days} the sums of their days, {its} finds a transfer's
-- record. What the rows before add up to is {base} of billing_checkedsum, and {wallet}, {grant}, {beyond}
-- and {window} are what these add up to (sums.sql). For both databases, but for {pending}: the ids of requests, as text, that events
-- of the outbox name; {kept}: the windows of budgets that wallets keep; {holds}, a row for each window that a hold names; {pools}:
-- those that wallets keep; {line}: what stands between the models of one.

-- name: wallet_without_account
SELECT w.id, 'it has no ledger account' FROM billing_wallet w
WHERE NOT EXISTS (SELECT 1 FROM billing_ledgeraccount a WHERE a.wallet_id = w.id AND a.kind = 'wallet')

-- name: wallet_posted
SELECT id, 'posted ' || posted || ', transfers ' || moved FROM (
    SELECT w.id, w.posted, coalesce(b.{base}, 0) + coalesce(s.amount, 0) AS moved
    FROM billing_wallet w
    LEFT JOIN billing_checkedsum b ON b.kind = 'wallet' AND b.subject = w.id
    LEFT JOIN ({wallet}) AS s ON s.subject = w.id
) AS sums WHERE posted <> moved

-- name: wallet_held
SELECT id, 'held ' || held || ', open holds ' || open FROM (
    SELECT w.id, w.held, coalesce((SELECT sum(h.amount) FROM billing_hold h WHERE h.wallet_id = w.id), 0) AS open
    FROM billing_wallet w
) AS sums WHERE held <> open

-- What windows of budgets have, the wallet's word before the row's, less what the open holds that name them have.
-- name: budget_held
WITH kept AS ({kept})
SELECT wallet, 'window ' || name || ' of a budget: held less open holds ' || sum(held) FROM (
    SELECT wallet, name, held FROM kept
    UNION ALL SELECT b.wallet_id, b.number || '.' || b.start, b.held FROM billing_budgetwindow b
        WHERE b.held <> 0 AND NOT EXISTS (SELECT 1 FROM kept k WHERE k.wallet = b.wallet_id AND k.name = b.number || '.' || b.start)
    UNION ALL SELECT h.wallet_id, h.name, -h.amount FROM ({holds}) AS h
) AS sums WHERE name <> '' GROUP BY wallet, name HAVING sum(held) <> 0

-- What pools have, less what is left of the grants that are restricted to the same models.
-- name: pool_rest
SELECT wallet, 'pool ' || models || ': rest less that of grants ' || sum(rest) FROM (
    SELECT wallet, models, rest FROM ({pools}) AS kept
    UNION ALL SELECT g.wallet_id, g.restriction, -g.remaining FROM billing_creditgrant g
        WHERE g.restriction <> '' AND g.remaining > 0
) AS sums GROUP BY wallet, models HAVING sum(rest) <> 0

-- name: pool_held
SELECT wallet, 'pool ' || models || ': held ' || held || ', open holds ' || open FROM (
    SELECT p.wallet, p.models, p.held, coalesce((SELECT sum(h.amount) FROM billing_hold h WHERE h.wallet_id = p.wallet
        AND replace({line} || p.models || {line}, {line} || h.model || {line}, '') <> {line} || p.models || {line}), 0) AS open
    FROM ({pools}) AS p
) AS sums WHERE held <> open

-- What is free of pools is for their models alone: nothing else may stand on it, whatever its wallet has in all.
-- name: pool_below_limit
SELECT id, 'free ' || posted - held || ', of pools ' || kept || ', overdraft limit ' || overdraft_limit FROM (
    SELECT w.id, w.posted, w.held, w.overdraft_limit, (
        SELECT sum(CASE WHEN p.rest > p.held THEN p.rest - p.held ELSE 0 END) FROM ({pools}) AS p WHERE p.wallet = w.id
    ) AS kept, coalesce(b.{base}, 0) + coalesce(s.amount, 0) AS beyond
    FROM billing_wallet w
    LEFT JOIN billing_checkedsum b ON b.kind = 'beyond' AND b.subject = w.id
    LEFT JOIN ({beyond}) AS s ON s.subject = w.id
    WHERE w.pools <> ''
) AS sums WHERE posted - held + overdraft_limit - kept + beyond < 0

-- Nothing but a charge above its hold, or a correction upwards, takes a wallet below its limit.
-- name: wallet_below_limit
SELECT id, 'posted ' || posted || ', overdraft limit ' || overdraft_limit FROM (
    SELECT w.id, w.posted, w.overdraft_limit, coalesce(b.{base}, 0) + coalesce(s.amount, 0) AS beyond
    FROM billing_wallet w
    LEFT JOIN billing_checkedsum b ON b.kind = 'beyond' AND b.subject = w.id
    LEFT JOIN ({beyond}) AS s ON s.subject = w.id
    WHERE w.posted < -w.overdraft_limit
) AS sums WHERE posted + overdraft_limit + beyond < 0

-- name: hold_without_wallet
SELECT h.id, 'its wallet does not exist' FROM billing_hold h
WHERE NOT EXISTS (SELECT 1 FROM billing_wallet w WHERE w.id = h.wallet_id)

-- name: grant_remaining
SELECT id, 'remaining ' || remaining || ', transfers ' || moved FROM (
    SELECT g.id, g.remaining, coalesce(b.{base}, 0) + coalesce(s.amount, 0) AS moved
    FROM {grants} AS g
    LEFT JOIN billing_checkedsum b ON b.kind = 'grant' AND b.subject = g.id
    LEFT JOIN ({grant}) AS s ON s.subject = g.id
) AS rests WHERE remaining <> moved

-- Codes 2, 3, 9, 10 and 12 are charge, true-up, refund, re-rating and missed promise; one in the customer's favour credits the wallet.
-- name: usage_charge
SELECT request, 'charge ' || charge || ', transfers ' || moved FROM (
    SELECT r.request, r.charge, coalesce(sums.moved, 0) AS moved
    FROM {touched} AS r
    LEFT JOIN (
        SELECT t.request, sum(CASE WHEN d.kind = 'wallet' THEN t.amount ELSE -t.amount END) AS moved
        FROM {theirs} AS t JOIN billing_ledgeraccount d ON d.id = t.debit_id
        WHERE t.request IS NOT NULL AND t.code IN (2, 3, 9, 10, 12) GROUP BY t.request
    ) AS sums ON sums.request = r.request
    WHERE NOT EXISTS (
        SELECT 1 FROM billing_usagerecord later
        WHERE later.day = r.day AND later.request = r.request AND later.revision > r.revision)
) AS charges WHERE charge <> moved

-- name: charge_without_usage
SELECT t.request, 'charged ' || sum(t.amount) || ' without a usage record' FROM {transfers} AS t
WHERE t.code IN (2, 3, 9, 10, 12) AND NOT EXISTS (SELECT 1 FROM billing_usagerecord r WHERE {its})
GROUP BY t.request

-- name: usage_while_held
SELECT h.id, 'the request is closed and still holds credit' FROM billing_hold h
WHERE EXISTS (SELECT 1 FROM billing_usagerecord r WHERE r.id = h.id)

-- A revision follows the one before it, and corrects an estimate, refunds more or was made by another re-rating.
-- name: revision_without_reason
SELECT r.request, 'revision ' || r.revision || ' corrects no estimate, and neither refunds nor re-rates'
FROM {records} AS r
WHERE r.revision > 0 AND NOT EXISTS (
    SELECT 1 FROM billing_usagerecord before
    WHERE before.day = r.day AND before.request = r.request AND before.revision = r.revision - 1
        AND (NOT before.exact OR r.refunded > before.refunded
            OR (r.rerating IS NOT NULL AND (before.rerating IS NULL OR before.rerating <> r.rerating))))

-- name: refund_without_transfer
SELECT request, 'refunded ' || refunded || ', of which the refunds'' transfers have ' || moved FROM (
    SELECT r.request, r.refunded, coalesce(sum(t.amount), 0) AS moved
    FROM {records} AS r LEFT JOIN billing_ledgertransfer t ON t.request = r.request AND t.code IN (9, 12)
    WHERE r.refunded <> 0 AND NOT EXISTS (
        SELECT 1 FROM billing_usagerecord later
        WHERE later.day = r.day AND later.request = r.request AND later.revision > r.revision)
    GROUP BY r.request, r.refunded
) AS refunds WHERE moved = 0 OR refunded < 0

-- What a missed promise is said to have given back is what its transfers (12) did.
-- name: missed_promise
SELECT request, 'credited ' || credited || ', transfers ' || moved FROM (
    SELECT m.request, coalesce(m.credited, 0) AS credited, coalesce(sum(t.amount), 0) AS moved
    FROM {touched} AS r JOIN billing_missedpromise m ON m.request = r.request
    LEFT JOIN {theirs} AS t ON t.request = m.request AND t.code = 12
    WHERE r.revision = 0 GROUP BY m.request, m.credited
) AS misses WHERE credited <> moved

-- name: miss_not_noted
SELECT r.request, 'its record says that the promise was missed, and nothing is to be given back' FROM {records} AS r
WHERE r.revision = 0 AND r.promise ->> 'missed' IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM billing_missedpromise m WHERE m.request = r.request)
    AND CAST(r.request AS text) NOT IN ({pending})

-- name: promise_without_miss
SELECT t.request, 'given back ' || sum(t.amount) || ' for a promise that was not missed' FROM {transfers} AS t
WHERE t.code = 12 AND NOT EXISTS (SELECT 1 FROM billing_missedpromise m WHERE m.request = t.request)
GROUP BY t.request

-- name: promise_days
SELECT tenant, 'on ' || day || ' of model ' || model || ', days less misses: ' || sum(missed) || ' missed, '
    || sum(credited) || ' credited'
FROM (
    SELECT tenant, day, version_id, model, missed, credited FROM billing_promiseday
    UNION ALL SELECT tenant, day, version_id, model, -1, -coalesce(credited, 0) FROM billing_missedpromise
) AS sums
GROUP BY tenant, day, version_id, model HAVING sum(missed) <> 0 OR sum(credited) <> 0

-- What was spent in a window is what was charged for the requests that were held in it, with their corrections, and
-- what was carried over from the release before.
-- name: budget_spent
WITH kept AS ({kept}), added AS ({window}), looked AS (
    SELECT wallet, name FROM kept WHERE name <> '' UNION SELECT subject, name FROM added
)
SELECT wallet, 'window ' || name || ' of a budget: spent less records ' || sum(spent) FROM (
    SELECT wallet, name, spent FROM kept
    UNION ALL SELECT b.wallet_id, b.number || '.' || b.start, CASE WHEN EXISTS (
            SELECT 1 FROM kept k WHERE k.wallet = b.wallet_id AND k.name = b.number || '.' || b.start
        ) THEN 0 ELSE b.spent END - b.carried FROM {windows} AS b
    UNION ALL SELECT b.subject, b.name, -b.{base} FROM {checked} AS b WHERE b.kind = 'window'
    UNION ALL SELECT subject, name, -amount FROM added
) AS sums WHERE name <> '' GROUP BY wallet, name HAVING sum(spent) <> 0

-- A grant is filled once, by its grant (1), by the adjustment (6) that made it, or by what rolled over (11): at once and in whole.
-- name: grant_amount
SELECT id, 'amount ' || amount || ', filled with ' || filled FROM (
    SELECT g.id, g.amount, coalesce(sum(t.amount), 0) AS filled
    FROM {filled} AS g
    LEFT JOIN ({transfers} AS t
        JOIN billing_ledgeraccount c ON c.id = t.credit_id AND c.kind = 'wallet')
        ON t.grant_id = g.id AND t.code IN (1, 6, 11)
    GROUP BY g.id, g.amount
) AS sums WHERE amount <> filled

-- What rolls over leaves one grant of a wallet and comes into another.
-- name: rolled_over
SELECT wallet, 'rolled over into it less out of it ' || sum(amount) FROM (
    SELECT coalesce(c.wallet_id, d.wallet_id) AS wallet, CASE c.kind WHEN 'wallet' THEN t.amount ELSE -t.amount END AS amount
    FROM billing_ledgertransfer t
    JOIN billing_ledgeraccount d ON d.id = t.debit_id
    JOIN billing_ledgeraccount c ON c.id = t.credit_id
    WHERE t.code = 11
) AS sums GROUP BY wallet HAVING sum(amount) <> 0

-- name: usage_of_another_wallet
SELECT r.request, 'its wallet is of another tenant, or of none' FROM {records} AS r
WHERE NOT EXISTS (SELECT 1 FROM billing_wallet w WHERE w.id = r.wallet AND w.tenant_id = r.tenant)

-- name: transfer_of_another_wallet
SELECT t.request, 'its charge was taken from another wallet, or another wallet''s grant' FROM {transfers} AS t
JOIN billing_usagerecord r ON {its} AND r.revision = 0
LEFT JOIN billing_ledgeraccount d ON d.id = t.debit_id
LEFT JOIN billing_ledgeraccount c ON c.id = t.credit_id
LEFT JOIN billing_creditgrant g ON g.id = t.grant_id
WHERE t.code IN (2, 3, 9, 10, 12) AND (coalesce(d.wallet_id, c.wallet_id) <> r.wallet OR g.wallet_id <> r.wallet)

-- Sums that pages, exports and the costs API show. Those of which events tell that are still in the outbox are left out.
-- name: rollup_sums
WITH unsummed AS (
    SELECT DISTINCT tenant, project, model, day FROM {summed} AS r WHERE CAST(request AS text) IN ({pending})
)
SELECT sums.tenant, 'on ' || sums.day || ' of model ' || sums.model || ', rollups less records: ' || sum(requests) || ' requests, '
    || sum(input_tokens) || ', ' || sum(cache_read_tokens) || ', ' || sum(output_tokens) || ' tokens (in, cached, out), '
    || sum(charge) || ' charged'
FROM (
    SELECT tenant, project, api_key, model, date(hour) AS day, requests, input_tokens, cache_read_tokens, output_tokens,
        charge
    FROM {rollups} AS u
    UNION ALL
    SELECT r.tenant, r.project, r.api_key, r.model, r.day, CASE r.revision WHEN 0 THEN -1 ELSE 0 END,
        coalesce(e.input_tokens, 0) - r.input_tokens, coalesce(e.cache_read_tokens, 0) - r.cache_read_tokens,
        coalesce(e.output_tokens + e.reasoning_tokens, 0) - r.output_tokens - r.reasoning_tokens,
        coalesce(e.charge, 0) - r.charge
    FROM {summed} AS r
    LEFT JOIN billing_usagerecord e ON e.day = r.day AND e.request = r.request AND e.revision = r.revision - 1
) AS sums
LEFT JOIN unsummed u ON u.tenant = sums.tenant AND u.project = sums.project AND u.model = sums.model AND u.day = sums.day
WHERE u.tenant IS NULL
GROUP BY sums.tenant, sums.project, sums.api_key, sums.model, sums.day
HAVING sum(requests) <> 0 OR sum(input_tokens) <> 0 OR sum(cache_read_tokens) <> 0 OR sum(output_tokens) <> 0
    OR sum(charge) <> 0

-- name: day_sums
SELECT model, 'on ' || day || ', days less rollups: ' || sum(requests) || ' requests, ' || sum(input_tokens) || ', '
    || sum(cache_read_tokens) || ', ' || sum(output_tokens) || ' tokens (in, cached, out), ' || sum(charge) || ' charged'
FROM (
    SELECT day, model, requests, input_tokens, cache_read_tokens, output_tokens, charge FROM {days} AS d
    UNION ALL
    SELECT date(hour), model, -requests, -input_tokens, -cache_read_tokens, -output_tokens, -charge
    FROM {of_days} AS u
) AS sums
GROUP BY day, model
HAVING sum(requests) <> 0 OR sum(input_tokens) <> 0 OR sum(cache_read_tokens) <> 0 OR sum(output_tokens) <> 0
    OR sum(charge) <> 0

-- Those of all hours before, which only a check of all rows reads.
-- name: key_total
SELECT api_key, 'total ' || charge || ', rollups ' || summed FROM (
    SELECT k.api_key, k.charge, coalesce(sum(u.charge), 0) AS summed
    FROM {totals} AS k LEFT JOIN billing_usagerollup u ON u.api_key = k.api_key AND u.hour < k.until
    GROUP BY k.api_key, k.charge
) AS sums WHERE charge <> summed
