-- Each statement returns a row (subject, detail) per contradiction; none when the rows agree. For both databases.

-- name: wallet_without_account
SELECT w.id, 'it has no ledger account' FROM billing_wallet w
WHERE NOT EXISTS (SELECT 1 FROM billing_ledgeraccount a WHERE a.wallet_id = w.id AND a.kind = 'wallet')

-- name: wallet_posted
SELECT id, 'posted ' || posted || ', transfers ' || moved FROM (
    SELECT w.id, w.posted,
        coalesce((SELECT sum(t.amount) FROM billing_ledgertransfer t WHERE t.credit_id = a.id), 0)
        - coalesce((SELECT sum(t.amount) FROM billing_ledgertransfer t WHERE t.debit_id = a.id), 0) AS moved
    FROM billing_wallet w JOIN billing_ledgeraccount a ON a.wallet_id = w.id AND a.kind = 'wallet'
) AS sums WHERE posted <> moved

-- name: wallet_held
SELECT id, 'held ' || held || ', open holds ' || open FROM (
    SELECT w.id, w.held, coalesce((SELECT sum(h.amount) FROM billing_hold h WHERE h.wallet_id = w.id), 0) AS open
    FROM billing_wallet w
) AS sums WHERE held <> open

-- name: budget_held
SELECT id, 'held ' || held || ', open holds ' || open FROM (
    SELECT b.id, b.held, coalesce((SELECT sum(h.amount) FROM billing_hold h WHERE h.budget = b.id), 0) AS open
    FROM billing_budget b
) AS sums WHERE held <> open

-- Nothing but a charge above its hold, or a correction upwards, takes a wallet below its limit.
-- name: wallet_below_limit
SELECT id, 'posted ' || posted || ', overdraft limit ' || overdraft_limit FROM (
    SELECT w.id, w.posted, w.overdraft_limit,
        coalesce((SELECT sum(r.charge - r.held) FROM billing_usagerecord r
            WHERE r.tenant = w.tenant_id AND r.wallet = w.id AND r.revision = 0 AND r.charge > r.held), 0)
        + coalesce((SELECT sum(r.charge - e.charge) FROM billing_usagerecord r
            JOIN billing_usagerecord e ON e.day = r.day AND e.request = r.request AND e.revision = r.revision - 1
            WHERE r.tenant = w.tenant_id AND r.wallet = w.id AND r.charge > e.charge), 0) AS beyond
    FROM billing_wallet w WHERE w.posted < -w.overdraft_limit
) AS sums WHERE posted + overdraft_limit + beyond < 0

-- name: hold_without_wallet
SELECT h.id, 'its wallet does not exist' FROM billing_hold h
WHERE NOT EXISTS (SELECT 1 FROM billing_wallet w WHERE w.id = h.wallet_id)

-- A transfer that names a grant fills it when the wallet is credited, and draws from it when the wallet is debited.
-- name: grant_remaining
SELECT id, 'remaining ' || remaining || ', transfers ' || moved FROM (
    SELECT g.id, g.remaining, coalesce(sums.moved, 0) AS moved
    FROM billing_creditgrant g LEFT JOIN (
        SELECT t.grant_id, sum(CASE WHEN c.kind = 'wallet' THEN t.amount ELSE 0 END)
            - sum(CASE WHEN d.kind = 'wallet' THEN t.amount ELSE 0 END) AS moved
        FROM billing_ledgertransfer t
        JOIN billing_ledgeraccount c ON c.id = t.credit_id JOIN billing_ledgeraccount d ON d.id = t.debit_id
        WHERE t.grant_id IS NOT NULL GROUP BY t.grant_id
    ) AS sums ON sums.grant_id = g.id
) AS rests WHERE remaining <> moved

-- Codes 2 and 3 are charge and true-up; a true-up in the customer's favour credits the wallet.
-- name: usage_charge
SELECT request, 'charge ' || charge || ', transfers ' || moved FROM (
    SELECT r.request, r.charge, coalesce(sums.moved, 0) AS moved
    FROM billing_usagerecord r
    LEFT JOIN (
        SELECT t.request, sum(CASE WHEN d.kind = 'wallet' THEN t.amount ELSE -t.amount END) AS moved
        FROM billing_ledgertransfer t JOIN billing_ledgeraccount d ON d.id = t.debit_id
        WHERE t.request IS NOT NULL AND t.code IN (2, 3) GROUP BY t.request
    ) AS sums ON sums.request = r.request
    WHERE NOT EXISTS (
        SELECT 1 FROM billing_usagerecord later
        WHERE later.day = r.day AND later.request = r.request AND later.revision > r.revision)
) AS charges WHERE charge <> moved

-- name: charge_without_usage
SELECT t.request, 'charged ' || sum(t.amount) || ' without a usage record' FROM billing_ledgertransfer t
WHERE t.code IN (2, 3) AND NOT EXISTS (SELECT 1 FROM billing_usagerecord r WHERE r.request = t.request)
GROUP BY t.request

-- name: usage_while_held
SELECT h.id, 'the request is closed and still holds credit' FROM billing_hold h
WHERE EXISTS (SELECT 1 FROM billing_usagerecord r WHERE r.request = h.id)

-- Only an estimate is ever corrected, and only by the revision after it.
-- name: revision_without_estimate
SELECT r.request, 'revision ' || r.revision || ' corrects no estimate' FROM billing_usagerecord r
WHERE r.revision > 0 AND NOT EXISTS (
    SELECT 1 FROM billing_usagerecord before
    WHERE before.day = r.day AND before.request = r.request AND before.revision = r.revision - 1 AND NOT before.exact)
