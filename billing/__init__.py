"""Credit: unit, cards, plans, ledger, holds, limits. Imports none of our other packages."""
