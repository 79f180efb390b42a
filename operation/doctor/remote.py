"""What doctor finds of remote engines: whether each answers its probe, takes our API key, and counts prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from base.errors import ServiceError
from base.sealing import SealError
from fleet.remote_engines import REMOTE
from fleet.trials import Seen, look_at
from inference.engine import EngineSpec
from operation.doctor.symptom import Symptom
from routing.models import Deployment

ANSWER_SECONDS = 5.0


def remote_engines() -> Iterator[Symptom]:
    """Yield one symptom for each remote deployment; all are asked at once, and none generates anything."""
    rows = list(Deployment.objects.filter(backend=REMOTE, is_active=True, model__is_active=True))
    specs = [EngineSpec(str(row.id), REMOTE, row.source, row.options, row.credential) for row in rows]
    for row, found in zip(rows, asyncio.run(_all(specs)), strict=True):
        yield _symptom(f"remote engine {row.name}", row, found)


async def _all(specs: list[EngineSpec]) -> list[Seen | BaseException]:
    return await asyncio.gather(*(look_at(spec, ANSWER_SECONDS) for spec in specs), return_exceptions=True)


def _symptom(subject: str, row: Deployment, found: Seen | BaseException) -> Symptom:
    match found:
        case Seen(uncounted=""):
            details = "; ".join(f"{name} {value}" for name, value in found.info.details.items())
            return Symptom(subject, f"{row.source}: context {found.info.max_context}; {details}")
        case Seen():
            mend = "see to its tokenizer endpoint: until then more credit is held for each prompt than it needs"
            return Symptom(subject, f"{row.source}: prompts are {found.uncounted}", mend)
        case SealError():
            return Symptom(subject, str(found), "give the secret it was sealed with, or enter its API key anew")
        case ServiceError():
            mend = "start it, or correct its address, API key or options in the admin"
            return Symptom(subject, f"{row.source}: {found.message}", mend)
    raise found
