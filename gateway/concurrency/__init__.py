"""How much goes on at once, of whom, and who waits for it."""
