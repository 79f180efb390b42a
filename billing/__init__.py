"""Credit: its unit, rate cards, plans, ledger, holds and rate limits. Imports none of Sluice's other packages."""
