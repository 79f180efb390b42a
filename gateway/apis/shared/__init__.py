"""Answers on their way to a client: a generation's events as the bytes of a format, whole or as a stream."""
