"""Whether a remote engine can take work, asked of the server now and then by its dialect's own probe."""

from __future__ import annotations

import asyncio
import logging

from inference.clients.remote.dialects.base import Ask, Dialect, Limits, ModelMissingError
from inference.clients.remote.faults import AskError, SetUpError
from inference.clients.remote.options import RemoteOptions
from inference.types import EngineInfo, Feature, Finished, FinishReason, GuidanceKind, Kind

READY_SECONDS = 5.0  # between two looks at a server that is ready
UNREADY_SECONDS = 1.0
WARN_SECONDS = 60.0  # between two warnings that prompts are estimated
MEET_SECONDS = 60.0  # after which a server that never failed is asked all of it again
UNANSWERED_SECONDS = 60.0  # for which a server that is well may leave unanswered what it is, as a busy one does
MOST_FAILED = 2  # looks in a row that fail before a ready server counts as gone

_CACHED = {None: "not known yet", True: "told", False: "not told so far: charged as computed ones"}
_NO_SUCH_PATH = frozenset({404, 405, 501})

log = logging.getLogger(__name__)


class Probe:
    """Looks at one deployment's server until it is closed.

    Most looks ask only whether the server is well. What it is (its model, context and version) is asked at the first,
    once a minute, and after whatever may have been a restart: what answers now may be another server. One that was
    ready, is well and doesn't say what it is stays ready for a while, and is asked again at each look.

    `info` is what it is served with, None before the first success, and `limits` what its server says of that;
    `reason` is why it takes no work now, "" when it does, and `detail` adds for operators what clients are not told.
    """

    def __init__(self, deployment: str, dialect: Dialect, options: RemoteOptions, ask: Ask) -> None:
        self.info: EngineInfo | None = None
        self.limits = Limits()
        self.reason = "not reached yet"
        self.detail = ""
        self._deployment = deployment
        self._dialect = dialect
        self._options = options
        self._ask = ask
        self._width = options.vector_width
        self._uncounted = ""
        self._findings: frozenset[str] = frozenset()  # of all answers
        self._tells_cached: bool | None = None  # None before the first whole answer
        self._warns_at = 0.0  # on the loop's clock
        self._failed = 0
        self._is_doubted = False  # whether another server may answer than the one that was met
        self._meets_at = 0.0  # on the loop's clock
        self._unanswered_since: float | None = None  # on the same, when it didn't say what it is, though it is well
        self._soon = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def look_soon(self, *, is_doubted: bool) -> None:
        """Look again at once: a request has failed, in a way that leaves doubt whether it is the same server still.

        Until then the deployment takes work: else whoever knows of a request that a server, or a proxy before it,
        refuses in such a way could keep it from everybody else.
        """
        self._is_doubted |= is_doubted
        self._soon.set()

    def learn_width(self, width: int) -> None:
        """Note the width of the model's vectors."""
        if width != self._width and self.info is not None:
            self._width = width
            self.info = self._info(self.info.max_context)

    def note_uncounted(self, reason: str) -> None:
        """Note why a prompt had to be estimated; "" once the server counts again."""
        if reason == self._uncounted:
            return
        now = asyncio.get_running_loop().time()
        if reason and now >= self._warns_at:  # one that counts now and then would fill the log
            log.warning("deployment %s: prompts are estimated: %s", self._deployment, reason)
            self._warns_at = now + WARN_SECONDS
        self._uncounted = reason
        if self.info is not None:
            self.info = self._info(self.info.max_context)

    def note_end(self, end: Finished, *, tells_cached: bool) -> None:
        """Note what a chat's end showed of the server. Some tell cached tokens only where there are any."""
        before = (self._findings, self._tells_cached)
        if new := set(end.findings) - self._findings:
            self._findings |= new
            log.warning("deployment %s: its server is found to be wrong: %s", self._deployment, ", ".join(sorted(new)))
        if tells_cached or (end.error is None and end.reason is not FinishReason.CANCELLED):
            self._tells_cached = tells_cached or bool(self._tells_cached)
        if before != (self._findings, self._tells_cached) and self.info is not None:
            self.info = self._info(self.info.max_context)

    async def close(self) -> None:
        """Look no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self._soon.clear()
            try:
                await self._look()
            except Exception:  # whatever it is, the next look may succeed
                log.exception("deployment %s: the probe failed", self._deployment)
                self._note_failed("the probe failed", "")
            try:
                async with asyncio.timeout(UNREADY_SECONDS if self.reason or self._failed else READY_SECONDS):
                    await self._soon.wait()
                await asyncio.sleep(UNREADY_SECONDS / 10)  # many requests fail at once
            except TimeoutError:
                pass

    async def _look(self) -> None:
        try:
            if self.info is None or self._is_doubted or asyncio.get_running_loop().time() >= self._meets_at:
                self._is_doubted = False  # before the questions: what fails while they are asked casts doubt anew
                await self._meet()
            else:
                await self._ask_probe()
        except AskError as error:
            if isinstance(error.refusal, SetUpError):
                self._note_failed("is not set up rightly", str(error), at_once=True)
            else:
                self._note_failed("does not answer" if not error.status else "is not well", str(error))
        except _UnfitError as error:
            self._note_failed("is not set up rightly", str(error), at_once=True)
        except _UnansweredError as error:
            self._note_unanswered(str(error))
        else:
            self._note_ready()

    async def _ask_probe(self) -> None:
        """Ask whether the server is well. One that doesn't know the path is there, which has to do; but a path that the
        operator gave it knew at the first look.
        """
        try:
            await self._ask(self._options.probe or self._dialect.probe)
        except AskError as error:
            if error.status not in _NO_SUCH_PATH or (self._options.probe and self.info is None):
                raise

    async def _meet(self) -> None:
        """Ask whether the server is well, has the model, with which context, and keeps tenants apart."""
        options = self._options
        await self._ask_probe()
        try:
            limits = await self._limits()
            old = "" if options.shared_prefixes else await self._dialect.too_old(self._ask)
        except ModelMissingError as error:
            raise _UnfitError(str(error)) from error
        except AskError as error:
            if error.status or self.info is None or self.reason:
                raise
            raise _UnansweredError(str(error)) from error
        if old:
            raise _UnfitError(old)
        served = min(filter(None, (limits.context, options.max_context)), default=0)
        if not served:
            raise _UnfitError("the server doesn't say the model's context: set max_context")
        self._unanswered_since = None
        self.limits = limits
        self.info = self._info(served)
        self._meets_at = asyncio.get_running_loop().time() + MEET_SECONDS

    async def _limits(self) -> Limits:
        """Return what the server says; one that can't say it may serve all the same where its context is given."""
        try:
            return await self._dialect.limits(self._ask, self._options.model)
        except AskError as error:
            if error.status and self._options.max_context and self._options.probe:
                return Limits()
            raise

    def _info(self, context: int) -> EngineInfo:
        dialect, options = self._dialect, self._options
        tokenizes = f"estimated: {self._uncounted}" if self._uncounted else dialect.tokenizes
        counts = "by the server in every event" if dialect.counts_always else "by the server at the end"
        is_shared = options.shared_prefixes or not dialect.isolates_prefixes
        return EngineInfo(
            deployment=self._deployment,
            model=options.model,
            kinds=frozenset(Kind(kind) for kind in options.kinds),
            max_context=context,
            max_input=min(context, self.limits.prompt or context),
            vector_width=self._width,
            can_extend=False,
            shares_prefixes=is_shared,
            features=self._features(),
            max_output=options.max_output,
            details={
                "dialect": dialect.name,
                "prompts": tokenizes,
                "usage": counts,
                "cached tokens": _CACHED[self._tells_cached],
                **({"found": ", ".join(sorted(self._findings))} if self._findings else {}),
                "prefix caches": "shared between tenants" if is_shared else dialect.isolation,
                "most output": str(options.max_output),
            },
        )

    def _features(self) -> frozenset[Feature]:
        """Return the features of the server's chats; whether the model reasons isn't known."""
        if Kind.CHAT not in self._options.kinds:
            return frozenset()
        guides = GuidanceKind.JSON_SCHEMA in self._dialect.guides
        return frozenset({Feature.TOOLS, Feature.STRUCTURED_OUTPUTS} if guides else {Feature.TOOLS})

    def _note_ready(self) -> None:
        self._failed = 0
        self.reason = self.detail = ""

    def _note_failed(self, reason: str, detail: str, *, at_once: bool = False) -> None:
        self._failed += 1
        self._is_doubted = True
        self.detail = detail
        if at_once or self._failed >= MOST_FAILED or self.reason:
            self.reason = reason

    def _note_unanswered(self, detail: str) -> None:
        """Note that the server is well and doesn't say what it is, which leaves the doubt that it is another one."""
        now = asyncio.get_running_loop().time()
        if self._unanswered_since is None:
            self._unanswered_since = now
        if now - self._unanswered_since >= UNANSWERED_SECONDS:
            self._note_failed("does not answer", detail, at_once=True)
            return
        self._failed = 0
        self._is_doubted = True
        self.detail = detail


class _UnfitError(Exception):
    """The server is there, but can't serve this deployment; the message says why, for operators."""


class _UnansweredError(Exception):
    """The server is well, and didn't answer what it is; the message says which question, for operators."""
