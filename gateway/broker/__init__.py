"""How messages get from Celery's beat to its workers."""
