"""Every connection to PostgreSQL has the same limits, and an address may say otherwise."""

from __future__ import annotations

from base.database.connections import CLIENT, postgresql_options


def test_an_address_adds_to_the_policy_and_wins_over_it():
    plain = postgresql_options({})
    assert CLIENT.items() <= plain.items()
    assert "-c statement_timeout=30s" in plain["options"]
    given = postgresql_options({"sslmode": "require", "connect_timeout": 2, "options": "-c lock_timeout=1s"})
    assert (given["sslmode"], given["connect_timeout"]) == ("require", 2)
    assert given["options"].endswith("-c lock_timeout=1s")
