"""Engines: deployments with their replicas and nodes, how each is now, what its memory, batches and cache save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from base.checks import command
from base.errors import ServiceError
from billing.selectors.usage import Recent, recent_of_all
from control.operate.base import Desk, address_of, live_page, operator_page, with_commands
from control.operate.now import SILENT, Need, needs_of, percentile, sparkline
from control.screens.charts import Tile
from control.screens.engine_work import lines_of, tenants_of
from control.screens.figures import duration, grouped, share
from control.screens.tables import Button, Cell, Column, Row, State, Table
from fleet.remote_models import try_again
from fleet.serving import alone_on, set_in_service, set_node_in_service
from fleet.serving import needs_of as what_needs
from gateway.runtime.data_plane import DeploymentState, live_of
from gateway.runtime.observed import NotedFinding, NotedResult, noted_results
from routing.models import Deployment, Node

HOUR = timedelta(hours=1)
HEARD = timedelta(minutes=2)
_KINDS = {"worker": "own engine", "openai": "remote", "fake": "fake"}
_ORDER = ("down", "degraded", "loading", "unknown", "ready", "model off", "off")
_CHECKS = frozenset({"models", "remote engines"})
States = Mapping[UUID, DeploymentState]


@require_safe
@operator_page("routing.view_deployment")
def engines(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show every deployment and node as it is now, what fails first."""
    states, results, recent = live_of(request).deployment_states(), noted_results(), _recent(desk)
    found = Deployment.objects.select_related("model").prefetch_related("replicas__node")
    rows = sorted(found, key=lambda row: (_ORDER.index(_word(row, states)), row.name))
    serving = Q(replicas__deployment__is_active=True, replicas__deployment__model__is_active=True)
    nodes = [(node, node.serves) for node in Node.objects.annotate(serves=Count("replicas", filter=serving))]
    context = desk.context(
        page="engines",
        silent=SILENT if states is None else "",
        needs=[
            *filter(None, (trouble_of(row, states, results) for row in rows)),
            *needs_of([one for one in results if one.name == "nodes"]),
        ],
        engines=Table("Engines", _COLUMNS, [_line(row, states, recent[row.pk]) for row in rows], "No deployment yet."),
        nodes=_nodes(nodes, may_change=desk.may("routing.change_node")),
        models=address_of("operate-models"),
        tables=address_of("admin:routing_deployment_changelist"),
    )
    return live_page(request, "engines", context)


@require_safe
@operator_page("routing.view_deployment")
def engine(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show one deployment: what is wrong first, then what it does now, did since it was loaded, and where it runs."""
    rows = Deployment.objects.select_related("model").prefetch_related("replicas__node")
    row = get_object_or_404(rows, pk=pk)
    states, recent = live_of(request).deployment_states(), _recent(desk)[pk]
    state = (states or {}).get(pk)
    is_remote = row.backend == Deployment.Backend.OPENAI
    context = desk.context(
        page="engines",
        row=row,
        state=_state(row, states),
        kind=_KINDS[row.backend],
        nodes=_places(row),
        is_remote=is_remote,
        silent=SILENT if states is None else "",
        trouble=trouble_of(row, states, noted_results()),
        tiles=_tiles(row, state, recent),
        work=[] if state is None else lines_of(state),
        tenants=_tenants(state) if desk.may("gateway.view_tenant") else None,
        replicas=_replicas(state),
        may_change=desk.may("routing.change_deployment"),
        model=address_of("operate-model", row.model.pk),
        table=address_of("admin:routing_deployment_change", pk),
    )
    return live_page(request, "engine", context)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.change_deployment")
def service(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Say what follows when the deployment is taken out of service or put back, and once that is confirmed do it."""
    row = get_object_or_404(Deployment.objects.select_related("model"), pk=pk)
    page = reverse("operate-engine", args=[pk])
    if request.method == "POST":
        is_active = request.POST.get("is_active") == "on"
        try:
            set_in_service(row, is_active, accepts="accepts" in request.POST)
        except ServiceError as error:
            messages.error(request, f"{row.name} stays in service. {error.message}")
        else:
            done = "is in service" if is_active else "takes no new request; what runs there ends by itself"
            messages.success(request, f"{row.name} {done}.")
        return redirect(page)
    told = what_needs(row)
    if row.is_active:
        told = [*told, "It takes no new request, and what runs there ends by itself. Nothing of it is deleted."]
    else:
        told = [f"It takes requests for {row.model.name} as soon as its engine is ready."]
    context = {"name": row.name, "is_active": row.is_active, "told": told, "back": page}
    return render(request, "operate/service.html", desk.context(page="engines", **context))


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.change_node")
def node_service(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Say what runs on the node alone, and once that is confirmed give its worker no work any more, or work again."""
    node = get_object_or_404(Node, pk=pk)
    if request.method == "POST":
        is_active = request.POST.get("is_active") == "on"
        try:
            set_node_in_service(node, is_active, accepts="accepts" in request.POST)
        except ServiceError as error:
            messages.error(request, f"{node.name} stays in service. {error.message}")
        else:
            done = "gets work" if is_active else "gets no new work; what runs there ends by itself"
            messages.success(request, f"{node.name} {done}.")
        return redirect("operate-engines")
    told = ["Gateways speak to its worker, and send it work once it is ready."]
    if node.is_active:
        alone = [f"{one.name} ({one.model.name})" for one in alone_on(node)]
        told = [
            *([f"These run nowhere else: {', '.join(alone)}. Requests for them fail."] if alone else []),
            "Its worker gets no new work, and what runs there ends by itself: the node is drained.",
        ]
    context = {"name": f"the node {node.name}", "is_active": node.is_active, "told": told}
    return render(
        request, "operate/service.html", desk.context(page="engines", back=reverse("operate-engines"), **context)
    )


@require_POST
@operator_page("routing.change_deployment")
def test(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Send a remote engine a test prompt, for which nobody is charged, and say what it answered and would have cost."""
    row = get_object_or_404(Deployment.objects.select_related("model"), pk=pk)
    if row.backend != Deployment.Backend.OPENAI:
        raise Http404
    try:
        added = try_again(row)
    except ServiceError as error:
        messages.error(request, ": ".join(filter(None, (error.field, error.message))))
    else:
        info = added.tried.info
        details = "; ".join(f"{name}: {value}" for name, value in info.details.items())
        messages.info(request, f"{row.name} answers: context {info.max_context:,} tokens; {details}.")
        for line in added.lines:
            messages.success(request, line)
    return redirect("operate-engine", pk)


def trouble_of(row: Deployment, states: States | None, results: Sequence[NotedResult]) -> Need | None:
    """Return why an active deployment takes no work, or only in part, and what mends it; None where it is well."""
    if states is None or _word(row, states) not in {"down", "degraded"}:
        return None
    state = states.get(row.pk)
    noted = _finding(row, results)
    said = "No gateway has opened it yet." if state is None else state.reason or "Its engine isn't ready."
    text, _, cure = said.partition(": set SLUICE_REMOTE_NETWORKS=")  # an address that isn't allowed says how to
    is_down = state is None or not state.is_ready
    hits = f"Requests for {row.model.name} fail, or go to its other deployments." if is_down else "It takes fewer."
    return Need(
        State("down", "bad") if is_down else State("degraded", "warn"),
        row.name,
        "",
        text,
        None if noted is None else noted.since,
        hits,
        with_commands(_mend(row, text, cure, noted)),
        reverse("operate-engine", args=[row.pk]),
        "its page",
    )


def _finding(row: Deployment, results: Sequence[NotedResult]) -> NotedFinding | None:
    about = [finding for one in results if one.name in _CHECKS for finding in one.failing]
    return next((finding for finding in about if finding.subject in {row.name, row.model.name}), None)


def _mend(row: Deployment, text: str, cure: str, noted: NotedFinding | None) -> str:
    if cure:
        networks, _, rest = cure.partition(" ")
        return f"set `SLUICE_REMOTE_NETWORKS={networks}` {rest}"
    if "price" in text:
        return f"publish a price: the price list of {row.model.name} is “{row.model.rate_card}”"
    if noted is not None:
        return noted.mend
    if row.backend == Deployment.Backend.OPENAI:
        return f"see to the server at {row.source}; Test prompt says how it answers"
    nodes = [replica.node for replica in row.replicas.all()]
    if not nodes:
        return f"no node serves it: `{command('replicas', 'add', row.name, 'local')[1:-1]}`"
    starts = " or ".join(f"{command('worker', '--node', node.name)} on {node.name}" for node in nodes)
    return f"see its worker's log, or start it: {starts}"


def _word(row: Deployment, states: States | None) -> str:
    """Return a deployment's state in a word, one of `_ORDER`."""
    if not row.is_active:
        return "off"
    if not row.model.is_active:
        return "model off"
    if states is None:
        return "unknown"
    state = states.get(row.pk)
    if state is None or not state.is_ready:
        is_loading = state is not None and state.reason.startswith(("loading", "not heard", "not reached"))
        return "loading" if is_loading else "down"
    return "degraded" if state.reason else "ready"


_TONES = {"down": "bad", "degraded": "warn", "loading": "warn", "unknown": "warn", "ready": "good"}


def _state(row: Deployment, states: States | None) -> State:
    word = _word(row, states)
    return State(word, _TONES.get(word, ""))


_COLUMNS = [
    *(Column("Deployment", "name"), Column("State", "state"), Column("Running", "number"), Column("Waiting", "number")),
    *(Column("K/V held", "number"), Column("Cached", "number"), Column("Free", "number")),
    *(Column("Hit rate", "number"), Column("Tokens/s", "number"), Column("First token", "number")),
]


def _line(row: Deployment, states: States | None, recent: Sequence[Recent]) -> Row:
    state = (states or {}).get(row.pk)
    name = Cell(
        row.name, reverse("operate-engine", args=[row.pk]), f"{row.model.name}, {_KINDS[row.backend]}{_places(row)}"
    )
    now: list[object] = [""] * 5 if state is None else [state.running, state.waiting, *_memory(state)]
    hit, speed, first = _figures(recent)
    return Row([name, _state(row, states), *now, hit, speed, first], is_over=not row.is_active)


def _places(row: Deployment) -> str:
    names = ", ".join(replica.node.name for replica in row.replicas.all())
    return f" on {names}" if names else ""


def _memory(state: DeploymentState) -> list[str]:
    """Return which parts of the fullest engine's K/V memory are held, cached and free; foreign engines tell none."""
    if state.work is None and not state.kv_used:
        return ["", "", ""]
    free = max(0.0, 1 - state.kv_used - state.kv_cached)
    return [f"{part:.0%}" for part in (state.kv_used, state.kv_cached, free)]


def _figures(recent: Sequence[Recent]) -> tuple[str, str, str]:
    """Return hit rate, tokens a second and time to first token of an hour's requests."""
    prompts = sum(one.input_tokens + one.cached_tokens for one in recent)
    hit = share(sum(one.cached_tokens for one in recent), prompts) if prompts else ""
    told = [one for one in recent if one.ttft_ms is not None and one.duration_ms is not None]
    seconds = sum((one.duration_ms or 0) - (one.ttft_ms or 0) for one in told) / 1000
    tokens = sum(one.output_tokens for one in told)
    speed = f"{tokens / seconds:,.0f}" if seconds > 0 and tokens else ""
    firsts = [one.ttft_ms for one in recent if one.ttft_ms is not None]
    return hit, speed, duration(percentile(firsts, 50)) if firsts else ""


def _recent(desk: Desk) -> Mapping[UUID, list[Recent]]:
    found: dict[UUID, list[Recent]] = defaultdict(list)
    if desk.may("billing.view_usagerecord"):
        for one in recent_of_all(timezone.now() - HOUR):
            found[one.deployment].append(one)
    return found


def _tiles(row: Deployment, state: DeploymentState | None, recent: Sequence[Recent]) -> list[Tile]:
    hit, speed, _ = _figures(recent)
    firsts = [(one.at, one.ttft_ms) for one in recent if one.ttft_ms is not None]
    times = [ms for _, ms in firsts]
    requests = address_of("operate-requests", deployment=row.pk, hours=1)
    found = []
    if state is not None:
        found += [Tile("Running", grouped(state.running), f"{grouped(state.waiting)} waiting now")]
        held, cached, free = _memory(state)
        if held:
            found.append(Tile("K/V memory held", held, f"{cached} cached, {free} free, at its fullest"))
    half = f"{duration(percentile(times, 50))} / {duration(percentile(times, 95))}" if times else "–"
    since = timezone.now() - HOUR
    return [
        *found,
        Tile("Requests", grouped(len(recent)), "in an hour", requests),
        Tile("First token", half, "half, and 95 %, in an hour", requests, sparkline(firsts, since)),
        Tile("Tokens a second", speed or "–", "of each request, in an hour"),
        Tile("Hit rate", hit or "–", "of prompt tokens, in an hour"),
    ]


def _tenants(state: DeploymentState | None) -> Table | None:
    if state is None or state.work is None or not (found := tenants_of(state.work)):
        return None
    columns = [Column("Tenant", "name"), Column("Device time", "number"), Column("Of all", "number")]
    return Table("Who had most of the device", columns, [Row(one) for one in found])


def _replicas(state: DeploymentState | None) -> Table | None:
    if state is None or not state.replicas:
        return None
    columns = [
        Column("Node", "name"),
        Column("State", "state"),
        Column("Context", "number"),
        Column("What its engine says", "wraps"),
    ]
    lines = []
    for one in state.replicas:
        word = State("not ready", "bad") if one.obstacle else State("ready", "warn" if one.remark else "good")
        said = [one.obstacle, one.remark, one.detail, *(f"{name}: {value}" for name, value in one.details.items())]
        lines.append(Row([one.node or "its server", word, one.context, "; ".join(filter(None, said))]))
    return Table("Where it runs", columns, lines)


def _nodes(nodes: Sequence[tuple[Node, int]], *, may_change: bool) -> Table:
    lines = []
    for node, serves in nodes:
        heard = node.seen_at is not None and node.seen_at > timezone.now() - HEARD
        word = State("off") if not node.is_active else State("heard", "good") if heard else State("silent", "warn")
        act = Button("Take out" if node.is_active else "Put back", reverse("operate-node", args=[node.pk]), node.name)
        values = [node.name, word, node.address or "this machine", serves, node.seen_at]
        lines.append(Row([*values, [act]] if may_change else values, is_over=not node.is_active))
    columns = [
        *(Column("Node", "name"), Column("State", "state"), Column("Address"), Column("Deployments", "number")),
        *(Column("Heard", "time"), *([Column("Action", "buttons", is_hidden=True)] if may_change else [])),
    ]
    return Table("Nodes", columns, lines, "No node yet: the first model of an own engine makes that of this machine.")
