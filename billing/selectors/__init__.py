"""Reads of credit. Each makes a fixed number of queries and writes nothing."""
