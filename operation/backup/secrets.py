"""The secrets of an installation: what a backup keeps of them, and what a restored home still has to be told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from django.conf import settings

# Variable → the setting that holds its value, its default filled in.
EFFECTIVE = {
    "SLUICE_SECRET_KEY": "SECRET_KEY",
    "SLUICE_KEY_HASH_SECRET": "SLUICE_KEY_HASH_SECRET",
    "SLUICE_CACHE_SECRET": "SLUICE_CACHE_SECRET",
    "SLUICE_CREDENTIAL_SECRET": "SLUICE_CREDENTIAL_SECRET",
}
FALLBACKS = {
    "SLUICE_SECRET_KEY_FALLBACKS": "SECRET_KEY_FALLBACKS",
    "SLUICE_KEY_HASH_FALLBACKS": "SLUICE_KEY_HASH_FALLBACKS",
    "SLUICE_CREDENTIAL_FALLBACKS": "SLUICE_CREDENTIAL_FALLBACKS",
}
# The first is kept in a file of the home where the environment doesn't give it; nothing is sold without the others.
OPTIONAL = {name: name for name in ("SLUICE_GATEWAY_KEY", "SLUICE_STRIPE_SECRET_KEY", "SLUICE_STRIPE_WEBHOOK_SECRET")}
RESTORED = "restored-secrets"


def in_use() -> dict[str, str]:
    """Return the value of each secret's variable, as the environment would give it."""
    values = {variable: str(getattr(settings, name)) for variable, name in EFFECTIVE.items()}
    lists = {variable: ",".join(getattr(settings, name)) for variable, name in FALLBACKS.items()}
    found = {variable: getattr(settings, name) for variable, name in OPTIONAL.items()}
    given = {variable: value if isinstance(value, str) else ",".join(value) for variable, value in found.items()}
    return _as_given({**values, **{variable: value for variable, value in (lists | given).items() if value}})


def take_over(kept: Mapping[str, str], home: Path) -> dict[str, Path]:
    """Give a home the secrets of a backup.

    A generated secret is replaced by the backup's. What the environment decides otherwise stays to be done by the
    operator: such values are written to files (mode 0600) below the home, which are returned by variable.
    """
    now = in_use()
    if settings.SLUICE_SECRET_IS_GENERATED:
        generated, ours = now["SLUICE_SECRET_KEY"], kept["SLUICE_SECRET_KEY"]
        for variable, value in now.items():  # it stands in for those that aren't set
            now[variable] = ",".join(ours if part == generated else part for part in value.split(","))
        _write(home / "secret.key", ours)
    # Backups of releases up to 0.1 hold fallbacks that nobody gave, too.
    differing = {variable: value for variable, value in _as_given(kept).items() if now.get(variable) != value}
    folder = home / RESTORED
    files = {variable: folder / variable for variable in differing}
    for variable, path in files.items():
        folder.mkdir(mode=0o700, exist_ok=True)
        _write(path, differing[variable])
    return files


def _as_given(values: Mapping[str, str]) -> dict[str, str]:
    """Leave out what settings themselves add to the fallbacks of credentials: the secret key and its own fallbacks."""
    added = {values["SLUICE_SECRET_KEY"], *values.get("SLUICE_SECRET_KEY_FALLBACKS", "").split(",")}
    parts = values.get("SLUICE_CREDENTIAL_FALLBACKS", "").split(",")
    given = ",".join(part for part in parts if part not in added)
    others = {variable: value for variable, value in values.items() if variable != "SLUICE_CREDENTIAL_FALLBACKS"}
    return {**others, **({"SLUICE_CREDENTIAL_FALLBACKS": given} if given else {})}


def _write(path: Path, value: str) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(value)
    draft.rename(path)
