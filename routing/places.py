"""Which replica of a model gets a request, with why each of the others was passed over. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from routing.catalogue import Catalogue, Ceiling, DeploymentEntry, ReplicaEntry
from routing.ceilings import over_time
from routing.choice import Draw, Option, choose
from routing.conditions import tokens_of
from routing.prefix import Digest
from routing.types import Candidate, RouteQuery

BLIND = {"data": "takes no images", "urls": "takes images as data: URLs only, none by their addresses"}


class Replicas(Protocol):
    """The states of the replicas, by their ids."""

    def usable(self, replica: UUID) -> str:
        """Return why it can't take work now; empty when it can."""
        ...

    def refuses(self, replica: UUID, adapter: str) -> str:
        """Return why it doesn't serve that adapter, however well it serves its base; empty where nothing says so."""
        ...

    def load(self, replica: UUID) -> int:
        """Return how many tokens it has to compute, as far as that is known."""
        ...

    def context(self, replica: UUID) -> int | None:
        """Return the context in which it serves, None where that isn't known."""
        ...

    def matched(self, replica: UUID, prefix: Sequence[Digest]) -> int:
        """Return how many tokens of a prompt with this chain of digests it has probably cached."""
        ...

    def ttft_ms(self, deployment: UUID, percentile: int, adapter: str = "") -> int | None:
        """Return the time to first token of a deployment's latest requests with that adapter, or with its base alone;
        None where too few were measured.
        """
        ...


class Places:
    """The replicas of one decision; `candidates` collects what was considered and not chosen.

    `refused` has the models whose adapters every replica of theirs refuses, each with one's reason.
    """

    def __init__(
        self,
        query: RouteQuery,
        catalogue: Catalogue,
        replicas: Replicas,
        *,
        prefix: Callable[[str], Sequence[Digest]],
        draw: Draw,
    ) -> None:
        self.candidates: list[Candidate] = []
        self.refused: dict[str, str] = {}
        self._query = query
        self._catalogue = catalogue
        self._replicas = replicas
        self._prefix = prefix
        self._draw = draw
        self._tokens = tokens_of(query)

    def of(self, model: str, ceiling: Ceiling | None = None) -> Option | None:
        """Return the replica of the model's that gets the request, of deployments that hold the `ceiling` in time."""
        ready: list[tuple[DeploymentEntry, ReplicaEntry]] = []
        refusals: list[str] = []
        passed = len(self.candidates)
        for deployment in self._catalogue.deployments.get(model, ()):
            if not deployment.sees(self._query.images):
                self.candidates.append(Candidate(model, deployment.name, BLIND[self._query.images]))
                continue
            if slow := self._over_time(deployment, ceiling)[0]:
                self.candidates.append(Candidate(model, deployment.name, slow))
                continue
            if not deployment.replicas:
                self.candidates.append(Candidate(model, deployment.name, "it has no replica on an active node"))
            for replica in deployment.replicas:
                unusable = self._replicas.usable(replica.id)
                refusal = "" if unusable else self._refusal(deployment, replica)
                refusals += [refusal] if refusal else []
                if reason := unusable or refusal:
                    self.candidates.append(Candidate(model, deployment.name, reason, replica.place))
                else:
                    ready.append((deployment, replica))
        if refusals and len(refusals) == len(self.candidates) - passed and not ready:
            self.refused[model] = refusals[0]
        ready = self._roomy(ready)
        if not ready:
            return None
        prefix = self._prefix(model) if len(ready) > 1 else ()
        options = [
            Option(
                deployment,
                replica,
                self._replicas.load(replica.id),
                self._replicas.matched(replica.id, prefix) if prefix else 0,
            )
            for deployment, replica in ready
        ]
        choice = choose(options, self._draw)
        self.candidates.extend(candidate(option, reason) for option, reason in choice.passed)
        return choice.option

    def could_serve(self, model: str) -> bool:
        """Whether some replica of the model's could take the request, were there no ceiling."""
        return any(
            deployment.sees(self._query.images)
            and not (self._replicas.usable(replica.id) or self._refusal(deployment, replica))
            for deployment in self._catalogue.deployments.get(model, ())
            for replica in deployment.replicas
        )

    def excess_of(self, deployment: DeploymentEntry, ceiling: Ceiling) -> float:
        """Return how many times the ceiling of time to first token the deployment takes; 0 where that isn't known."""
        return self._over_time(deployment, ceiling)[1]

    def _refusal(self, deployment: DeploymentEntry, replica: ReplicaEntry) -> str:
        """Return why the replica doesn't serve the deployment's adapter, "" where it does or there is none."""
        return self._replicas.refuses(replica.id, deployment.adapter) if deployment.adapter else ""

    def _over_time(self, deployment: DeploymentEntry, ceiling: Ceiling | None) -> tuple[str, float]:
        if ceiling is None or ceiling.ttft_ms is None:
            return "", 0.0
        ttft_ms = self._replicas.ttft_ms(deployment.id, ceiling.ttft_percentile, deployment.adapter)
        return over_time(ceiling, ttft_ms)

    def context_of(self, model: str) -> int:
        """Return the catalogue's context, or less where memory or the proof at load left less everywhere."""
        context, most = self._catalogue.models[model].context_length, 0
        for deployment in self._catalogue.deployments.get(model, ()):
            for replica in deployment.replicas:
                most = max(most, self._replicas.context(replica.id) or 0)
        return min(context, most) if most else context

    def blind_reason(self, model: str) -> str:
        """Return why no deployment of the model sees the query's images; empty when one does or there are none."""
        images, deployments = self._query.images, self._catalogue.deployments.get(model, ())
        if images == "none" or not deployments or any(deployment.sees(images) for deployment in deployments):
            return ""
        return BLIND["urls" if any(deployment.sees("data") for deployment in deployments) else "data"]

    def _roomy(self, ready: list[tuple[DeploymentEntry, ReplicaEntry]]) -> list[tuple[DeploymentEntry, ReplicaEntry]]:
        """Return those whose context the prompt probably fits into; all where it fits nowhere: the engine says so."""
        if len(ready) < 2:
            return ready
        contexts = {replica.id: self._replicas.context(replica.id) for _, replica in ready}
        roomy = [place for place in ready if (context := contexts[place[1].id]) is None or self._tokens <= context]
        if not roomy:
            return ready
        for deployment, replica in ready:
            if (deployment, replica) not in roomy:
                reason = f"prompt of about {self._tokens} tokens is longer than its context of {contexts[replica.id]}"
                self.candidates.append(Candidate(deployment.model, deployment.name, reason, replica.place))
        return roomy


def candidate(option: Option, rejected: str = "") -> Candidate:
    """Return the option as it is told, with why it was `rejected`."""
    deployment, replica = option.deployment, option.replica
    return Candidate(deployment.model, deployment.name, rejected, replica.place, option.load, option.matched)
