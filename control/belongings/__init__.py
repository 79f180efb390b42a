"""Belongings: all rows and files of a tenant or of a person, which can be exported and erased."""
