-- What transfers and records add up to, a row (subject, name, amount) for each wallet, grant or window that they touch: those of
-- {transfers} and {records}, which are tables or parts of them. For both databases, but for {named}: the windows a record names.

-- name: wallet
SELECT a.wallet_id AS subject, '' AS name, sum(m.amount) AS amount
FROM (
    SELECT t.credit_id AS account, t.amount FROM {transfers} AS t
    UNION ALL SELECT t.debit_id, -t.amount FROM {transfers} AS t
) AS m JOIN billing_ledgeraccount a ON a.id = m.account AND a.kind = 'wallet'
GROUP BY a.wallet_id

-- A transfer that names a grant fills it when the wallet is credited, and draws from it when the wallet is debited.
-- name: grant
SELECT t.grant_id AS subject, '' AS name, sum(CASE WHEN c.kind = 'wallet' THEN t.amount ELSE 0 END)
    - sum(CASE WHEN d.kind = 'wallet' THEN t.amount ELSE 0 END) AS amount
FROM {transfers} AS t
JOIN billing_ledgeraccount c ON c.id = t.credit_id JOIN billing_ledgeraccount d ON d.id = t.debit_id
WHERE t.grant_id IS NOT NULL GROUP BY t.grant_id

-- What charges took above their holds, and corrections above what was charged before.
-- name: beyond
SELECT r.wallet AS subject, '' AS name, sum(r.charge - coalesce(e.charge, r.held)) AS amount
FROM {records} AS r
LEFT JOIN billing_usagerecord e
    ON r.revision > 0 AND e.day = r.day AND e.request = r.request AND e.revision = r.revision - 1
WHERE r.charge > coalesce(e.charge, r.held) GROUP BY r.wallet

-- name: window
SELECT r.wallet AS subject, named.{name} AS name, sum(r.charge - coalesce(e.charge, 0)) AS amount
FROM {records} AS r
LEFT JOIN billing_usagerecord e
    ON r.revision > 0 AND e.day = r.day AND e.request = r.request AND e.revision = r.revision - 1
{named} WHERE r.windows IS NOT NULL AND named.{name} <> '' GROUP BY r.wallet, named.{name}
