"""Reranking and scores of pairs."""
