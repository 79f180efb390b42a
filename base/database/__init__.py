"""How every process connects to the database."""
