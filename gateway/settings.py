"""Settings: from the environment only, with embedded defaults under SLUICE_HOME (every variable: docs/settings.md)."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from csp.constants import NONCE, NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from base.database import connections
from base.environment import Environment, made_once
from tenancy.audit import LEAST_AUDIT_DAYS

BASE_DIR = Path(__file__).resolve().parent.parent
env = Environment()  # `NAME_FILE` names a file that holds the value of `NAME`

SLUICE_HOME = Path(env.str("SLUICE_HOME", default=str(BASE_DIR / "var"))).resolve()
# What is kept here (credit, keys' digests, the worker's record) and its copies are nobody else's to read.
os.umask(0o077)
try:
    SLUICE_HOME.mkdir(parents=True, exist_ok=True)
except OSError as error:
    raise ImproperlyConfigured(f"SLUICE_HOME can't be a folder at {SLUICE_HOME}: {error.strerror}") from error
SLUICE_ENV = env.str("SLUICE_ENV", default="development")
DEBUG = env.switch("SLUICE_DEBUG", False)
# The part of the free memory that one model's K/V may take, where its deployment gives no `kv_tokens`.
SLUICE_KV_SHARE = env.number("SLUICE_KV_SHARE", 0.3, most=1.0)
# The processor's level for which workers build their kernels; empty: the best.
SLUICE_KERNEL_LEVEL = env.str("SLUICE_KERNEL_LEVEL", default="")
# A step of a model that lasts longer counts as hung: its worker takes no work and shows no sign of life any more.
SLUICE_STEP_SECONDS = env.number("SLUICE_STEP_SECONDS", 60.0)
# A supervised process that gives no sign of life for so long is replaced; 0: never.
SLUICE_WATCHDOG_SECONDS = env.number("SLUICE_WATCHDOG_SECONDS", 15.0, least=0.0)


_given = env.str("SLUICE_SECRET_KEY", default="")
SLUICE_SECRET_IS_GENERATED = not _given
SECRET_KEY = _given or made_once(SLUICE_HOME / "secret.key", lambda: secrets.token_urlsafe(48))
SECRET_KEY_FALLBACKS = env.parts("SLUICE_SECRET_KEY_FALLBACKS", [])
SLUICE_KEY_HASH_SECRET = env.str("SLUICE_KEY_HASH_SECRET", default="") or SECRET_KEY
SLUICE_KEY_HASH_FALLBACKS = env.parts("SLUICE_KEY_HASH_FALLBACKS", [])
SLUICE_CACHE_SECRET = env.str("SLUICE_CACHE_SECRET", default="") or SECRET_KEY
SLUICE_CREDENTIAL_SECRET = env.str("SLUICE_CREDENTIAL_SECRET", default="") or SECRET_KEY
SLUICE_CREDENTIAL_FALLBACKS = [
    *env.parts("SLUICE_CREDENTIAL_FALLBACKS", []),
    SECRET_KEY,
    *SECRET_KEY_FALLBACKS,
]
# Where a remote engine may stand, beside public addresses (inference/clients/remote/addresses.py).
SLUICE_REMOTE_NETWORKS = env.networks(
    "SLUICE_REMOTE_NETWORKS", ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]
)
# By which gateways prove themselves to workers on other machines; made when the first such node is added.
SLUICE_GATEWAY_KEY = env.curve_key("SLUICE_GATEWAY_KEY")
SLUICE_BASE_URL = env.address("SLUICE_BASE_URL", "http://127.0.0.1:8000")
_base = urlsplit(SLUICE_BASE_URL)
_is_secure = _base.scheme == "https"
ALLOWED_HOSTS = env.parts("SLUICE_ALLOWED_HOSTS", ["127.0.0.1", "localhost", "[::1]", _base.hostname or ""])
CSRF_TRUSTED_ORIGINS = env.parts("SLUICE_TRUSTED_ORIGINS", [f"https://{_base.netloc}"] if _is_secure else [])

INSTALLED_APPS = [
    "django.contrib.admin.apps.SimpleAdminConfig",  # control.urls finds its pages: the data plane has none
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "django_htmx",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "gateway",
    "control",
    "operation",
    "billing",
    "routing",
]
# Whether what chats ask for is read, by the optional package desk/ where it is there.
SLUICE_DESK = env.switch("SLUICE_DESK", (BASE_DIR / "desk").is_dir())
if SLUICE_DESK:
    INSTALLED_APPS.append("desk")
# Where the specialists of a first run are described; there need be none.
SLUICE_SPECIALISTS = BASE_DIR / "desk/specialists"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "control.middleware.RequestIdMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "control.middleware.OriginMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "control.accounts.sessions.SeenMiddleware",
    "control.middleware.OperatorScopeMiddleware",
]

ROOT_URLCONF = "control.urls"
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
                "control.account_shell.account_shell",
            ],
        },
    }
]

_found = env.database("DATABASE_URL", f"sqlite:///{SLUICE_HOME / 'sluice.sqlite3'}")
SLUICE_EMBEDDED = "sqlite" in _found["ENGINE"]
_pool = 0 if SLUICE_EMBEDDED else env.whole("SLUICE_DATABASE_POOL", 16)
# PostgreSQL's own address, where DATABASE_URL is that of a pooler in front of it.
_direct = None if SLUICE_EMBEDDED else env.server("SLUICE_DIRECT_DATABASE_URL")
DATABASES = {"default": connections.settings_of(_found, pool=_pool, direct=_direct)}

# Several gateways count limits together in Redis; without it there is one gateway, which counts in its memory.
REDIS_URL = env.redis("REDIS_URL")
# How long a request waits for Redis, before its limits are taken from its gateway's share of them.
SLUICE_REDIS_SECONDS = env.number("SLUICE_REDIS_SECONDS", 0.05, most=5.0)

# Lines of every command; those that serve configure their own as they start.
LOGGING_CONFIG = "gateway.logs.configure_command"
LOGGING = {"version": 1}

# Traces are exported where this is set; OpenTelemetry's own variables say how. The share is drawn here, by chance.
OTEL_EXPORTER_OTLP_ENDPOINT = env.address("OTEL_EXPORTER_OTLP_ENDPOINT", "", example="http://collector:4318")
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = env.exact_address(
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", example="http://collector:4318/v1/traces"
)
SLUICE_TRACE_SHARE = env.number("SLUICE_TRACE_SHARE", 1.0, least=0.0, most=1.0)

# Requests of a tenant beyond its plan's concurrency wait for a place.
SLUICE_QUEUE_SECONDS = env.number("SLUICE_QUEUE_SECONDS", 10.0, least=0.0)
SLUICE_QUEUE_LENGTH = env.whole("SLUICE_QUEUE_LENGTH", 256, least=0)
SLUICE_QUEUE_BYTES = env.whole("SLUICE_QUEUE_BYTES", 16 << 20, least=0)
# How long an admitted request waits in an engine of ours before its first step; 0: as long as it takes.
SLUICE_ENGINE_QUEUE_SECONDS = env.number("SLUICE_ENGINE_QUEUE_SECONDS", 60.0, least=0.0)

# How many of the periodic tasks one process does at a time: a long one must keep no other waiting, and batches take
# one while they run.
SLUICE_CELERY_CONCURRENCY = env.whole("SLUICE_CELERY_CONCURRENCY", 3, least=3)

# Tenants' files: their bytes lie in a storage of Django's, which all gateways and the jobs have to reach.
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "files": {
        "BACKEND": env.str("SLUICE_FILES_STORAGE", default="django.core.files.storage.FileSystemStorage"),
        "OPTIONS": env.options(
            "SLUICE_FILES_OPTIONS",
            {
                "location": str(SLUICE_HOME / "files"),
                "file_permissions_mode": 0o600,
                "directory_permissions_mode": 0o700,
            },
        ),
    },
}
SLUICE_MAX_FILE_BYTES = env.whole("SLUICE_MAX_FILE_BYTES", 100 * 1024 * 1024)
SLUICE_FILE_SECONDS = env.number("SLUICE_FILE_SECONDS", 900.0)
SLUICE_MOST_FILES = env.whole("SLUICE_MOST_FILES", 1000)
SLUICE_MOST_FILE_BYTES = env.whole("SLUICE_MOST_FILE_BYTES", 10 * 1024**3)
SLUICE_MOST_ADAPTER_RANK = env.whole("SLUICE_MOST_ADAPTER_RANK", 64)
SLUICE_MOST_ADAPTER_BYTES = env.whole("SLUICE_MOST_ADAPTER_BYTES", 2 * 1024**3)
SLUICE_FILE_DAYS = env.whole("SLUICE_FILE_DAYS", 30)
SLUICE_BATCH_DAYS = env.whole("SLUICE_BATCH_DAYS", 30)
# How many lines of batches one gateway runs at a time, and one tenant in all of them.
SLUICE_BATCH_CONCURRENCY = env.whole("SLUICE_BATCH_CONCURRENCY", 8, most=256)
SLUICE_MAX_OUTPUT_BYTES = env.whole("SLUICE_MAX_OUTPUT_BYTES", 1024**3)
SLUICE_MOST_BATCHES = env.whole("SLUICE_MOST_BATCHES", 50)

# How many bytes the answers that are kept for one tenant under idempotency keys may take in the database.
SLUICE_MOST_KEPT_BYTES = env.whole("SLUICE_MOST_KEPT_BYTES", 1024**3)

# How old the last backup may be; 0: backups are made by other means.
SLUICE_BACKUP_HOURS = env.whole("SLUICE_BACKUP_HOURS", 36, least=0)

# Where months go whose usage leaves the tables (manage.py archive)
SLUICE_ARCHIVE = env.str("SLUICE_ARCHIVE", default=str(SLUICE_HOME / "archive"))

# How often the books are checked: what is new, and after how many days without a check of all rows somebody is told.
SLUICE_RECONCILE_HOURS = env.whole("SLUICE_RECONCILE_HOURS", 1)
SLUICE_RECONCILE_WHOLE_DAYS = env.whole("SLUICE_RECONCILE_WHOLE_DAYS", 30)

# How long rows are kept that have ended (operation/jobs/purge.py)
SLUICE_REFUSAL_DAYS = env.whole("SLUICE_REFUSAL_DAYS", 30)
SLUICE_INVITATION_DAYS = env.whole("SLUICE_INVITATION_DAYS", 30)
SLUICE_RESPONSE_DAYS = env.whole("SLUICE_RESPONSE_DAYS", 30)
SLUICE_MAIL_DAYS = env.whole("SLUICE_MAIL_DAYS", 30)
SLUICE_RECONCILIATION_DAYS = env.whole("SLUICE_RECONCILIATION_DAYS", 90)
SLUICE_AUDIT_DAYS = env.whole("SLUICE_AUDIT_DAYS", 0, least=0)
if 0 < SLUICE_AUDIT_DAYS < LEAST_AUDIT_DAYS:
    raise ImproperlyConfigured(
        f"SLUICE_AUDIT_DAYS is {SLUICE_AUDIT_DAYS}: it has to be 0, or {LEAST_AUDIT_DAYS} or more"
    )

AUTH_USER_MODEL = "gateway.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = ["control.formats"]
TIME_ZONE = "UTC"
USE_TZ = True
# WhiteNoise serves the apps' own folders: nothing has to be collected.
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = SLUICE_HOME / "static"
STATIC_ROOT.mkdir(exist_ok=True)
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

# What limits of sign-ins and of the management API count.
CACHES: dict[str, dict[str, object]] = {
    "default": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "OPTIONS": {"MAX_ENTRIES": 100_000},
    }
}
if REDIS_URL:
    CACHES["default"] = {
        "BACKEND": "base.shared_cache.SharedCache",
        "LOCATION": [REDIS_URL],
        "KEY_PREFIX": "sluice",
        "OPTIONS": {"socket_timeout": SLUICE_REDIS_SECONDS, "socket_connect_timeout": SLUICE_REDIS_SECONDS},
    }

# Browsers
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _is_secure
SESSION_COOKIE_AGE = env.whole("SLUICE_SESSION_DAYS", 14) * 86_400
SESSION_COOKIE_NAME = "sluice_session"
CSRF_COOKIE_NAME = "sluice_csrf"
SECURE_HSTS_SECONDS = env.whole("SLUICE_HSTS_SECONDS", 0, least=0)
SLUICE_TRUST_PROXY = env.switch("SLUICE_TRUST_PROXY", False)
# Who may say for whom it asks: of `X-Forwarded-For` the last address that isn't one of these counts.
SLUICE_PROXIES = env.networks("SLUICE_PROXIES", ["127.0.0.0/8", "::1"])
if SLUICE_TRUST_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    USE_X_FORWARDED_HOST = True
# What one client may take of the server (gateway/http/listener/http.py)
SLUICE_MAX_HEAD_BYTES = env.whole("SLUICE_MAX_HEAD_BYTES", 32 * 1024)
SLUICE_HEAD_SECONDS = env.number("SLUICE_HEAD_SECONDS", 10.0)
SLUICE_MAX_BODY_BYTES = env.whole("SLUICE_MAX_BODY_BYTES", 8 * 1024 * 1024)
SLUICE_BODY_SECONDS = env.number("SLUICE_BODY_SECONDS", 30.0)
SLUICE_MAX_FRAME_BYTES = env.whole("SLUICE_MAX_FRAME_BYTES", 1024 * 1024)
SLUICE_IDLE_SECONDS = env.whole("SLUICE_IDLE_SECONDS", 30)
SLUICE_WRITE_SECONDS = env.number("SLUICE_WRITE_SECONDS", 30.0)
SLUICE_MAX_CONNECTIONS = env.whole("SLUICE_MAX_CONNECTIONS", 8192)
SLUICE_MAX_CONNECTIONS_PER_ADDRESS = env.whole("SLUICE_MAX_CONNECTIONS_PER_ADDRESS", 512)
# How long a gateway that is replaced lets what runs in it end.
SLUICE_DRAIN_SECONDS = env.number("SLUICE_DRAIN_SECONDS", 30.0, least=0.0)
SLUICE_NOTICE_SECONDS = env.number("SLUICE_NOTICE_SECONDS", 2.0, least=0.0)
SLUICE_METRICS_PORT = env.whole("SLUICE_METRICS_PORT", 0, least=0, most=65_535)
# Where a process of the control plane alone asks what only a gateway knows: the address of its probes.
SLUICE_DATA_PLANE = env.address("SLUICE_DATA_PLANE", "")
# For details in /readyz, and for /metrics beside the API from elsewhere; without one it is derived from the secret.
SLUICE_OPERATOR_TOKEN = env.str("SLUICE_OPERATOR_TOKEN", default="")
SLUICE_CORS_ORIGINS = env.origins("SLUICE_CORS_ORIGINS")
DATA_UPLOAD_MAX_MEMORY_SIZE = SLUICE_MAX_BODY_BYTES  # the edge has refused what is larger

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF, NONCE],
        "connect-src": [SELF],
        "img-src": [SELF, "data:"],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}

# What requests may be for: routing rules and plans choose among these.
SLUICE_TASKS = env.parts(
    "SLUICE_TASKS", ["chat", "embedding", "rerank", "extract", "classify", "summarize", "translate", "code"]
)
# The embedding model that compares requests for `auto` with the examples of routing rules ("": the first one of an own
# engine), and how long such a request waits for it.
SLUICE_EXAMPLES_MODEL = env.str("SLUICE_EXAMPLES_MODEL", default="")
SLUICE_EXAMPLES_SECONDS = env.number("SLUICE_EXAMPLES_SECONDS", 0.5)

# Signing in
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
# The plan that people who sign up by themselves get; empty keeps sign-up closed.
SLUICE_SIGNUP_PLAN = env.str("SLUICE_SIGNUP_PLAN", default="")
ACCOUNT_ADAPTER = "control.accounts.adapter.AccountAdapter"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
# Whoever signs in has proved the address: by an invitation, by the mail of a sign-up, or an operator vouches for it.
ACCOUNT_EMAIL_VERIFICATION = "mandatory"
# Who asks for a password at an address that nobody has is shown the same page, and no stranger gets a mail of it.
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
ACCOUNT_EMAIL_SUBJECT_PREFIX = "[Sluice] "
ACCOUNT_SESSION_REMEMBER = True
SLUICE_SIGN_IN_RATE = env.rate("SLUICE_SIGN_IN_RATE", "30/m")
ACCOUNT_RATE_LIMITS = dict.fromkeys(
    ("login", "open_link", "open_invitation", "open_address"), f"{SLUICE_SIGN_IN_RATE}/ip"
)
MFA_TOTP_ISSUER = "Sluice"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not _is_secure  # browsers have keys without TLS on localhost alone
EMAIL_TIMEOUT = 10  # seconds for each answer of the mail server
vars().update(env.mail("SLUICE_EMAIL_URL", "consolemail://"))
# Who is mailed about what needs an operator; empty: all who may do everything.
SLUICE_ALERT_MAIL = env.parts("SLUICE_ALERT_MAIL", [])
# Shown to members of a suspended tenant.
SLUICE_SUPPORT_CONTACT = env.str("SLUICE_SUPPORT_CONTACT", default="")
DEFAULT_FROM_EMAIL = env.str("SLUICE_EMAIL_FROM", default=f"sluice@{_base.hostname}")

# Most that one tenant may have open.
SLUICE_MOST_KEYS = env.whole("SLUICE_MOST_KEYS", 100)
SLUICE_MOST_INVITATIONS = env.whole("SLUICE_MOST_INVITATIONS", 50)

# Management API
SLUICE_API_RATE_CALLER = env.rate("SLUICE_API_RATE_CALLER", "300/minute")
SLUICE_API_RATE_ADDRESS = env.rate("SLUICE_API_RATE_ADDRESS", "900/minute")
SLUICE_INVITATION_RATE = env.rate("SLUICE_INVITATION_RATE", "30/hour")
SLUICE_VOUCHER_RATE = env.rate("SLUICE_VOUCHER_RATE", "30/hour")
SLUICE_PURCHASE_RATE = env.rate("SLUICE_PURCHASE_RATE", "20/hour")

# Buying credit at Stripe (control/payments.py): nothing of it is there without all three.
SLUICE_STRIPE_SECRET_KEY = env.str("SLUICE_STRIPE_SECRET_KEY", default="")
SLUICE_STRIPE_WEBHOOK_SECRET = env.parts("SLUICE_STRIPE_WEBHOOK_SECRET", [])
SLUICE_CREDIT_PACKS = env.packs("SLUICE_CREDIT_PACKS")
# What a disputed payment freezes until it is won: the tenant's wallet, or that purchase's own credit.
SLUICE_DISPUTE_FREEZES = env.one_of("SLUICE_DISPUTE_FREEZES", "wallet", ("wallet", "grant"))
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "control.api.authentication.KeyAuthentication",
        "control.api.authentication.TenantSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["control.api.permissions.IsTenantMember"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["control.api.parsers.BoundedJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "control.api.errors.handle_exception",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Sluice API",
    "DESCRIPTION": "Models under /v1, and the keys, projects, members, usage, wallet and routing of one tenant.",
    "OAS_VERSION": "3.1.0",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "PREPROCESSING_HOOKS": ["drf_spectacular.hooks.preprocess_exclude_path_format"],
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "control.api.data_plane.merged"],
}
