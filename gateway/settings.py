"""Settings: from the environment only, with embedded defaults under SLUICE_HOME (every variable: docs/settings.md)."""

from __future__ import annotations

import secrets
from pathlib import Path

import environ

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

SLUICE_HOME = Path(env.str("SLUICE_HOME", default=str(BASE_DIR / "var"))).resolve()
SLUICE_HOME.mkdir(parents=True, exist_ok=True)
SLUICE_ENV = env.str("SLUICE_ENV", default="development")
DEBUG = env.bool("SLUICE_DEBUG", default=False)


def _generated_secret() -> str:
    """Return the secret kept in SLUICE_HOME, making it once (mode 0600)."""
    path = SLUICE_HOME / "secret.key"
    if not path.exists():
        draft = path.with_suffix(f".{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(48))
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass  # another process made it first: use that one
        finally:
            draft.unlink()
    return path.read_text().strip()


SECRET_KEY = env.str("SLUICE_SECRET_KEY", default="") or _generated_secret()
SLUICE_SECRET_IS_GENERATED = not env.str("SLUICE_SECRET_KEY", default="")
ALLOWED_HOSTS = env.list("SLUICE_ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("SLUICE_TRUSTED_ORIGINS", default=[])
SLUICE_BASE_URL = env.str("SLUICE_BASE_URL", default="http://127.0.0.1:8000")

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "django_htmx",
    "gateway",
    "billing",
    "routing",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "gateway.urls"
ASGI_APPLICATION = "gateway.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

DATABASE_URL = env.str("DATABASE_URL", default=f"sqlite:///{SLUICE_HOME / 'sluice.sqlite3'}")
_database = env.db_url_config(DATABASE_URL)
if "sqlite" in _database["ENGINE"]:
    _database["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": (
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA recursive_triggers=ON; PRAGMA foreign_keys=ON"
        ),
    }
else:
    _database["CONN_MAX_AGE"] = 0
    _database["CONN_HEALTH_CHECKS"] = True
    _database["OPTIONS"] = {
        "pool": {"min_size": 1, "max_size": env.int("SLUICE_DATABASE_POOL", default=16), "timeout": 5}
    }
_database["TEST"] = {"NAME": str(SLUICE_HOME / "test.sqlite3")} if "sqlite" in _database["ENGINE"] else {}
DATABASES = {"default": _database}
SLUICE_EMBEDDED = "sqlite" in _database["ENGINE"]

AUTH_USER_MODEL = "gateway.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = SLUICE_HOME / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
