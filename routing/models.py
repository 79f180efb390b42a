"""The catalogue: public models, where they are served, and the rules that choose between them."""

from __future__ import annotations

import uuid

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

LEAST_SIMILARITY = 25
"""Percent: below it two texts have little to do with each other (measured: docs/benchmarks.md)."""


class PublicModel(models.Model):
    """A model as tenants see it: name, what it can do, and by name the rate card that prices it.

    An adapter without a `rate_card` has that which its base has at the time. One with a `tenant` is that tenant's own:
    no other sees it, and with a `project` no other project of the tenant's does. It may be used whatever models the
    plan includes, as long as that includes adapters. A request that doesn't bound its output gets at most
    `default_max_tokens` of it, without that as many as the context holds.

    Without a price in force nobody is served. `cost_input` and `cost_output` are what a million tokens cost the
    operator, in µcr, where that is known and wasn't measured (`billing.CostSample`): pages show the margin, no charge
    depends on it.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=120, unique=True)
    kinds = models.JSONField(default=list, help_text='What it is for: "chat", "embedding", "score".')
    context_length = models.PositiveIntegerField(help_text="Tokens, prompt and answer together.")
    rate_card = models.CharField(max_length=100, blank=True, help_text="Name of the rate card.")
    description = models.CharField(max_length=300, blank=True)
    default_max_tokens = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Most tokens of an answer whose request doesn't say max_tokens; empty: as many as the context holds.",
    )
    cost_input = models.PositiveBigIntegerField(null=True, blank=True, help_text="µcr per million tokens.")
    cost_output = models.PositiveBigIntegerField(null=True, blank=True, help_text="µcr per million tokens.")
    tenant = models.ForeignKey(
        "gateway.Tenant", on_delete=models.PROTECT, null=True, blank=True, related_name="+", editable=False
    )
    project = models.ForeignKey(
        "gateway.Project", on_delete=models.PROTECT, null=True, blank=True, related_name="+", editable=False
    )
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(project=None) | Q(tenant__isnull=False), name="public_model_project_of_a_tenant"
            )
        ]

    def __str__(self) -> str:
        return self.name


class ModelAlias(models.Model):
    """Another name for `target`: a public model, ``auto`` or ``auto:<task>``. A model of the same name comes first.

    Plans and keys know no aliases: who may use the target may ask for it by any of its names.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=120, unique=True, help_text="As clients ask for it, such as gpt-4o.")
    target = models.CharField(max_length=120, help_text="A model of the catalogue, auto, or auto:<task>.")

    class Meta:
        ordering = ["name"]
        verbose_name = "alias"
        verbose_name_plural = "aliases"

    def __str__(self) -> str:
        return f"{self.name} → {self.target}"


class Node(models.Model):
    """A machine with a worker process, which serves the deployments that have a replica there.

    `address` is where gateways reach the worker, which proves itself by `public_key` (CURVE, 40 characters of Z85).
    Both are empty for a worker on the gateway's own machine, reached by a socket in the file system. `seen_at` is when
    a gateway last heard from it.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.SlugField(max_length=80, unique=True)
    address = models.CharField(
        max_length=200,
        blank=True,
        validators=[RegexValidator(r"^tcp://[^\s/*]+:[0-9]{1,5}$", "An address such as tcp://10.0.0.7:7411.")],
        help_text="tcp://host:port; empty for the worker on this machine.",
    )
    public_key = models.CharField(
        max_length=40,
        blank=True,
        validators=[RegexValidator(r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$", "40 characters of Z85.")],
        help_text="Made by `manage.py nodes add`.",
    )
    is_active = models.BooleanField(default=True)
    seen_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(address="", public_key="") | ~Q(address="") & ~Q(public_key=""),
                name="node_address_with_key",
                violation_error_message="An address needs the worker's public key, and a key an address.",
            ),
            models.UniqueConstraint(fields=["address"], condition=~Q(address=""), name="node_address_once"),
        ]

    def __str__(self) -> str:
        return self.name


class Deployment(models.Model):
    """A public model as it is served by one kind of engine: `backend` with that backend's own `options`.

    For ``worker``: `source` is the hub id, folder or GGUF file of the weights, and `replicas` says on which nodes they
    are loaded. For ``openai``: `source` is the address of a foreign server, `credential` its API key, sealed by the
    gateway. Requests are drawn between the deployments of a model in proportion to `weight`; those of equal weight
    count as one pool.
    """

    class Backend(models.TextChoices):
        WORKER = "worker"
        OPENAI = "openai", "remote, with OpenAI's API"
        FAKE = "fake"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.SlugField(max_length=80, unique=True)
    model = models.ForeignKey(PublicModel, on_delete=models.PROTECT, related_name="deployments")
    backend = models.CharField(max_length=20, choices=Backend, default=Backend.WORKER)
    source = models.CharField(max_length=500, blank=True)
    options = models.JSONField(default=dict, blank=True)
    credential = models.TextField(blank=True, editable=False)
    weight = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["name"]
        constraints = [models.CheckConstraint(condition=Q(weight__gt=0), name="deployment_weight_positive")]

    def __str__(self) -> str:
        return self.name


class Replica(models.Model):
    """A deployment on one node. Of several, one with twice the `weight` is taken for twice as strong."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="replicas")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="replicas")
    weight = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])

    class Meta:
        ordering = ["node__name"]
        constraints = [
            models.UniqueConstraint(fields=["deployment", "node"], name="replica_once_per_node"),
            models.CheckConstraint(condition=Q(weight__gt=0), name="replica_weight_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.deployment} on {self.node}"


class Adapter(models.Model):
    """Weights that make a public model of its own, `model`, out of another, `base`, wherever that is served.

    `config` is PEFT's; the tensors are in the storage `files` under `key`, and never change. `bytes` is their size, and
    `rank` that of its low-rank products.
    """

    FOLDER = "adapters"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.OneToOneField(PublicModel, on_delete=models.PROTECT, related_name="adapter")
    base = models.ForeignKey(PublicModel, on_delete=models.PROTECT, related_name="adapters")
    config = models.JSONField()
    rank = models.PositiveIntegerField()
    bytes = models.BigIntegerField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["model__name"]

    def __str__(self) -> str:
        return f"{self.model} on {self.base}"

    @property
    def key(self) -> str:
        """The name of its tensors in the storage."""
        return f"{self.FOLDER}/{self.id.hex}"


class Fetch(models.Model):
    """A model on its way here: periodic work brings its `source` to this machine and puts it into the catalogue,
    without a price.

    `doing` is the step that it is at and `bytes` how much has come. Who works on it renews `lease_until`; when that is
    over another begins anew, and what is here stays here. `model` is what came of it, `refusal` why nothing did.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        STOPPED = "stopped"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    source = models.CharField(max_length=500)
    name = models.CharField(max_length=120, blank=True)
    options = models.JSONField(default=dict, blank=True)
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    doing = models.CharField(max_length=300, blank=True)
    bytes = models.BigIntegerField(default=0)
    refusal = models.CharField(max_length=1000, blank=True)
    model = models.ForeignKey(PublicModel, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    asked_by = models.CharField(max_length=254, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name or self.source

    @property
    def is_under_way(self) -> bool:
        """Whether something may still come of it."""
        return self.state in {self.State.WAITING, self.State.RUNNING}


class RouteRule(models.Model):
    """The models that may serve a request for ``auto`` or ``auto:<task>`` that meets the rule's conditions.

    Rules are tried in order of `priority`, lowest first; the first whose conditions all hold and that has a target that
    can serve the request decides. Empty `plan`, `task` and `structure`, and conditions that are None, match every
    request.

    A request that doesn't say its task is taken to be for the rule's task if it has the `structure`, or else if its
    text is at least `least_similarity` percent similar to one of the `examples`, and no other rule's come nearer.

    Of targets that cost no more than `max_price` (µcr per million output tokens) and `max_request_price` (µcr), and
    whose latest requests had their first token within `max_ttft_ms` at that percentile, the cheapest is taken;
    `beyond_ceiling` says what happens where there is none.
    """

    class Structure(models.TextChoices):
        TOOLS = "tools", "tools, or answers of tools"
        SCHEMA = "schema", "a schema or grammar for the answer"
        IMAGES = "images", "images"
        TEXT = "text", "text alone"

    class BeyondCeiling(models.TextChoices):
        REFUSE = "refuse", "refuse the request"
        NEAREST = "nearest", "take the nearest"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=80, unique=True)
    priority = models.IntegerField(default=100)
    plan = models.SlugField(max_length=40, blank=True)
    task = models.CharField(max_length=40, blank=True)
    min_prompt_tokens = models.PositiveIntegerField(null=True, blank=True)
    max_prompt_tokens = models.PositiveIntegerField(null=True, blank=True)
    structure = models.CharField(max_length=10, blank=True, choices=Structure)
    examples = models.JSONField(default=list, blank=True)
    least_similarity = models.PositiveSmallIntegerField(
        default=LEAST_SIMILARITY, validators=[MinValueValidator(1), MaxValueValidator(100)]
    )
    max_price = models.PositiveBigIntegerField(null=True, blank=True)
    max_request_price = models.PositiveBigIntegerField(null=True, blank=True)
    max_ttft_ms = models.PositiveIntegerField(null=True, blank=True)
    ttft_percentile = models.PositiveSmallIntegerField(default=50, choices=[(50, "p50"), (90, "p90")])
    beyond_ceiling = models.CharField(max_length=10, choices=BeyondCeiling, default=BeyondCeiling.REFUSE)
    is_active = models.BooleanField(default=True)

    class Meta:
        ordering = ["priority", "name"]

    def __str__(self) -> str:
        return self.name


class RouteTarget(models.Model):
    """One model that a rule may choose: of those that can serve the request, one is drawn in proportion to `weight`.

    One with `is_fallback` is chosen only when none of the others can serve it, or took it.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    rule = models.ForeignKey(RouteRule, on_delete=models.CASCADE, related_name="targets")
    model = models.ForeignKey(PublicModel, on_delete=models.PROTECT, related_name="+")
    weight = models.PositiveIntegerField(default=1)
    is_fallback = models.BooleanField("fallback", default=False, help_text="Only when none of the others can serve.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["rule", "model"], name="route_target_once_per_model"),
            models.CheckConstraint(condition=Q(weight__gt=0), name="route_target_weight_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.rule} → {self.model}"
