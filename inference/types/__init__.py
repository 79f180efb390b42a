"""What crosses the engine seam: requests, events and usage, as plain immutable data. Everybody imports it from here."""

from __future__ import annotations

from inference.types.events import (
    ANSWER_NOT_GUIDED,
    CallPiece,
    Delta,
    EngineFault,
    Event,
    Evidence,
    Finished,
    FinishReason,
    Lost,
    NothingRan,
    PositionLogprobs,
    Running,
    Started,
    TokenLogprob,
    Told,
    Usage,
    Vector,
)
from inference.types.histogram import BOUNDS, Histogram
from inference.types.info import (
    LOADING,
    EngineInfo,
    Feature,
    Health,
    Work,
)
from inference.types.requests import (
    GenerationRequest,
    Kind,
    Prepared,
    Resumed,
    TemplateValue,
    Tokens,
)
from inference.types.sampling import (
    MAX_GUIDANCE_CHARACTERS,
    Asked,
    Guidance,
    GuidanceKind,
    SamplingParams,
)

__all__ = [
    "ANSWER_NOT_GUIDED",
    "BOUNDS",
    "LOADING",
    "MAX_GUIDANCE_CHARACTERS",
    "Asked",
    "CallPiece",
    "Delta",
    "EngineFault",
    "EngineInfo",
    "Event",
    "Evidence",
    "Feature",
    "FinishReason",
    "Finished",
    "GenerationRequest",
    "Guidance",
    "GuidanceKind",
    "Health",
    "Histogram",
    "Kind",
    "Lost",
    "NothingRan",
    "PositionLogprobs",
    "Prepared",
    "Resumed",
    "Running",
    "SamplingParams",
    "Started",
    "TemplateValue",
    "TokenLogprob",
    "Tokens",
    "Told",
    "Usage",
    "Vector",
    "Work",
]
