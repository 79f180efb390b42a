"""Web processes and jobs load neither the engine's libraries nor Celery: what each imports, in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["torch", "transformers", "safetensors", "numpy", "celery", "kombu"]


IMPORTS = (
    "import gateway.asgi; from django.urls import get_resolver; get_resolver().url_patterns",
    "from operation.management.commands import gateway, jobs, serve; import operation.jobs.tasks",
)


def test_no_process_imports_the_engine_or_celery():
    look = "import os, sys; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'gateway.settings'); "
    look += f"{'; '.join(IMPORTS)}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
