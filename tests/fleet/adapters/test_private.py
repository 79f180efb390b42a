"""Two tenants with an adapter each: neither sees, uses, or shares anything with the other's, by whatever way."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from django.db import transaction

from billing.models import UsageRecord
from billing.services import plans
from fleet.adapters import add_adapter_folder, remove_adapter
from routing.models import PublicModel, RouteRule, RouteTarget
from tenancy.models import Project
from tenancy.services import keys
from tenancy.services.restrictions import Restrictions
from tests.fleet.adapters.files import save, tensors
from tests.gateway.apis.client import ask, assert_error
from tests.gateway.apis.files.test_files import TYPE, form
from tests.gateway.apis.server import with_runtime
from tests.gateway.apis.websocket.socket import Socket
from tests.gateway.batches.conftest import Desk, chat_line, run_jobs
from tests.gateway.world import engine_of, in_database, make_world, opened, settled

pytestmark = pytest.mark.django_db(transaction=True)

HELLO = [{"role": "user", "content": "Hello"}]


class Two:
    """Two tenants on one gateway, whose base is a fake engine."""

    def __init__(self, folder):
        self.folder = folder
        self.mine, self.theirs = make_world(echo=True, terms={"adapters": 2}), make_world(echo=True)
        self.adapters = {world: self.add(world) for world in (self.mine.tenant.slug, self.theirs.tenant.slug)}

    def add(self, slug):
        tenant = next(world.tenant for world in (self.mine, self.theirs) if world.tenant.slug == slug)
        return add_adapter_folder(save(self.folder / slug), base="fake", name="own", tenant=tenant)

    def name(self, world):
        return f"{world.tenant.slug}/own"

    def take(self, runtime):
        """Let the engine take both adapters, as a worker does that was offered them."""
        names = tuple(str(adapter.id) for adapter in self.adapters.values())
        engine = engine_of(runtime, self.mine)
        engine.options = replace(engine.options, adapters=names)
        return engine


@pytest.fixture
async def two(transactional_db, settings, tmp_path):
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    return await in_database(Two, tmp_path / "folders")


async def chat(app, world, model, path="/v1/chat/completions", **body):
    shape = {"input": "Hello"} if path == "/v1/responses" else {"messages": HELLO}
    return await ask(app, path, {"model": model, **shape, **body}, key=world.secret)


async def test_each_sees_and_uses_its_own_alone(two, tmp_path):
    async with opened(tmp_path) as runtime:
        app, engine = with_runtime(runtime), two.take(runtime)
        seen = []
        prepare = engine.prepare

        async def noted(request):
            seen.append(request)
            return await prepare(request)

        engine.prepare = noted
        for world, other in ((two.mine, two.theirs), (two.theirs, two.mine)):
            own, foreign = two.name(world), two.name(other)
            cards = (await ask(app, "/v1/models", key=world.secret)).json()["data"]
            assert {card["id"] for card in cards} == {"auto", "fake", own}
            assert (await ask(app, f"/v1/models/{own}", key=world.secret)).status == 200
            assert_error(await ask(app, f"/v1/models/{foreign}", key=world.secret), 404, "model_not_found")
            answer = await chat(app, world, own)
            assert answer.status == 200, answer.body
            assert answer.json()["model"] == own
            assert seen[-1].adapter == str(two.adapters[world.tenant.slug].id)
            assert seen[-1].domain == str(world.tenant.id)
            before = len(seen)
            for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
                refused = await chat(app, world, foreign, path, **({"max_tokens": 4} if "messages" in path else {}))
                assert refused.status == 404, (path, refused.body)
                made_up = await chat(
                    app, world, "nobody/own", path, **({"max_tokens": 4} if "messages" in path else {})
                )
                told = refused.body.decode().replace(foreign, "nobody/own")
                assert strip(json.loads(told)) == strip(made_up.json())
            assert len(seen) == before
        await settled(runtime)
    records = await in_database(lambda: list(UsageRecord.objects.values_list("tenant", "model")))
    assert sorted(records) == sorted((world.tenant.id, two.name(world)) for world in (two.mine, two.theirs))


async def test_a_projects_own_is_nothing_to_another_project_and_a_tenants_is_for_all(two, tmp_path):
    """`own` is the tenant's, made by an operator; `law` is made by a key, and so its project's."""
    mine = two.mine

    def second():
        project = Project.objects.create(tenant=mine.tenant, name="Second")
        return project, keys.create_key(tenant=mine.tenant, project=project, name="second")[1]

    project, secret = await in_database(second)
    own, law = two.name(mine), f"{mine.tenant.slug}/law"
    async with opened(tmp_path) as runtime:
        app, engine = with_runtime(runtime), two.take(runtime)
        content = form(tensors(), filename="adapter_model.safetensors", purpose="adapter")
        file = (await ask(app, "/v1/files", content, headers=TYPE, key=mine.secret)).json()["id"]
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
        body = {"base": "fake", "name": "law", "file_id": file, "config": config}
        before = await runtime.catalogue.epoch.current()
        made = await ask(app, "/v1/adapters", body, key=mine.secret)
        assert (made.status, made.json().get("id")) == (200, law), made.body
        identifier = await in_database(lambda: str(PublicModel.objects.get(name=law).adapter.id))
        engine.options = replace(engine.options, adapters=(*engine.options.adapters, identifier))
        while await runtime.catalogue.epoch.current() == before:
            await runtime.catalogue.epoch.next()

        async def seen(key):
            lists = [(await ask(app, path, key=key)).json()["data"] for path in ("/v1/adapters", "/v1/models")]
            return [{one["id"] for one in found} - {"auto", "fake"} for found in lists]

        assert await seen(mine.secret) == [{own, law}] * 2
        assert await seen(secret) == [{own}] * 2
        for path, body in PATHS.items():
            answer = await ask(app, path, {"model": law, **body}, key=secret)
            assert (answer.status, b"model_not_found" in answer.body) == (404, True), (path, answer.body)
        for method in ("GET", "DELETE"):
            answer = await ask(app, f"/v1/adapters/{law}", method=method, key=secret)
            assert_error(answer, 404, "adapter_not_found")
        for key in (secret, mine.secret):
            assert (await ask(app, "/v1/chat/completions", {"model": own, "messages": HELLO}, key=key)).status == 200
            answer = await ask(app, f"/v1/adapters/{own}", method="DELETE", key=key)
            assert_error(answer, 403, "adapter_shared")
        with pytest.raises(Exception, match="There is no model"):
            await in_database(lambda: Restrictions((law,)).checked(project))
        assert (await chat(app, mine, law)).status == 200
        assert (await ask(app, f"/v1/adapters/{law}", method="DELETE", key=mine.secret)).status == 200
        assert (await seen(mine.secret))[0] == {own}
        await settled(runtime)


PATHS = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/v1/embeddings": {"input": "Hello"},
    "/v1/rerank": {"query": "Hello", "documents": ["one"]},
    "/v1/score": {"text_1": "Hello", "text_2": "one"},
    "/v1/classify": {"input": "Hello"},
    "/v1/tokenize": {"prompt": "Hello"},
    "/v1/detokenize": {"tokens": [1]},
}


async def test_metrics_count_an_own_model_as_its_base(two, tmp_path):
    async with opened(tmp_path) as runtime:
        app = with_runtime(runtime)
        two.take(runtime)
        assert (await chat(app, two.mine, two.name(two.mine))).status == 200
        await settled(runtime)
        text = runtime.metrics.render().decode()
    assert not [line for line in text.splitlines() if two.mine.tenant.slug in line]
    for counted in ("tokens_total", "credits_micro_total", "generations_total", "ttft_seconds_count"):
        assert any(line.startswith(f'sluice_{counted}{{model="fake"') for line in text.splitlines()), counted


async def test_anothers_name_is_answered_as_one_that_nobody_has(two, tmp_path):
    """By every endpoint that takes a model's name; a refusal tells nothing that the name didn't."""
    foreign, nobodys = two.name(two.theirs), "nobody-of-all/own"
    async with opened(tmp_path) as runtime:
        app, engine = with_runtime(runtime), two.take(runtime)
        for path, body in PATHS.items():
            told = [await ask(app, path, {"model": name, **body}, key=two.mine.secret) for name in (foreign, nobodys)]
            assert [answer.status for answer in told] == [404, 404], (path, told[0].body)
            errors = [strip(json.loads(answer.body.replace(foreign.encode(), nobodys.encode()))) for answer in told]
            assert errors[0] == errors[1], path
        told = [await ask(app, f"/v1/models/{name}", key=two.mine.secret) for name in (foreign, nobodys)]
        assert strip(json.loads(told[0].body.replace(foreign.encode(), nobodys.encode()))) == strip(told[1].json())
        socket = await Socket(app, key=two.mine.secret).opened()
        events = []
        for name in (foreign, nobodys):
            socket.send({"type": "response.create", "model": name, "input": "Hello"})
            [event] = await socket.until("error", "response.completed", "response.failed")
            events.append(json.loads(json.dumps(event).replace(foreign, nobodys)))
        await socket.leave()
        assert [event["error"]["code"] for event in events] == ["model_not_found"] * 2
        assert strip(events[0])["error"] == strip(events[1])["error"]
        assert not engine.prepares
        await settled(runtime)


async def test_a_line_of_a_batch_runs_with_ones_own_and_with_no_other(two, tmp_path, settings):
    def rule():
        made = RouteRule.objects.create(name="to theirs", priority=1)
        for name, is_fallback in ((two.name(two.theirs), False), ("fake", True)):
            RouteTarget.objects.create(rule=made, model=PublicModel.objects.get(name=name), is_fallback=is_fallback)

    await in_database(rule)
    async with opened(tmp_path) as runtime:
        two.take(runtime)
        desk = Desk(two.mine)
        names = (two.name(two.mine), two.name(two.theirs), "nobody-of-all/own", "auto")
        lines = [chat_line(number, body={"model": name}) for number, name in enumerate(names)]
        batch = await in_database(desk.begin, lines)
        await run_jobs(runtime)
        answers, errors = await in_database(desk.results, batch)
        assert [(one["custom_id"], one["response"]["body"]["model"]) for one in answers] == [
            ("c0", names[0]),
            ("c3", "fake"),
        ]
        assert [(one["custom_id"], one["response"]["status_code"]) for one in errors] == [("c1", 404), ("c2", 404)]
        bodies = [json.dumps(strip(one["response"]["body"])) for one in errors]
        assert bodies[0].replace(names[1], names[2]) == bodies[1]
        await settled(runtime)


async def test_a_plan_that_is_narrowed_serves_what_is_left_of_it_and_all_again_once_it_is_widened(two, tmp_path):
    """Told to a gateway that runs, by a raised epoch as a revocation is. Else whoever once had a plan would keep what
    it included, the base by an adapter that changes nothing among it.
    """

    def move(adapters, models=()):
        plan = plans.latest_version("test").plan
        with transaction.atomic():  # one epoch tells of both
            version = plans.publish_version(plan, adapters=adapters, allowed_models=list(models))
            two.mine.tenant.subscriptions.update(version=version)

    def add():
        return add_adapter_folder(save(tmp_path / "new"), base="fake", name="new", tenant=two.mine.tenant)

    made = await in_database(add)
    old, new = two.name(two.mine), f"{two.mine.tenant.slug}/new"
    assert (made.model.name, old < new) == (new, False)  # the older one isn't the first by name
    no_plan = "The plan has no room for adapters of one's own."
    too_many = "The plan has room for 1 adapter, which older ones take: delete one of those."
    no_base = "The plan doesn't include fake, which this is an adapter of."
    async with opened(tmp_path) as runtime:
        app, engine = with_runtime(runtime), two.take(runtime)
        engine.options = replace(engine.options, adapters=(*engine.options.adapters, str(made.id)))

        async def check(adapters, models, why):
            before = await runtime.catalogue.epoch.current()
            await in_database(move, adapters, models)
            while await runtime.catalogue.epoch.current() == before:
                await runtime.catalogue.epoch.next()
            cards = (await ask(app, "/v1/models", key=two.mine.secret)).json()["data"]
            assert {card["id"] for card in cards} - {"auto", "fake"} == {name for name, told in why.items() if not told}
            listed = {one["id"]: one for one in (await ask(app, "/v1/adapters", key=two.mine.secret)).json()["data"]}
            assert listed.keys() == why.keys()  # to be deleted, those that aren't served too
            for name, told in why.items():
                state = ("not_served", told) if told else ("ready", None)
                assert (listed[name]["status"], listed[name]["reason"]) == state
                shown = (await ask(app, f"/v1/adapters/{name}", key=two.mine.secret)).json()
                assert shown == listed[name]
                answer = await chat(app, two.mine, name)
                if told:
                    assert_error(answer, 403, "adapter_not_served", param="model")
                    assert answer.json()["error"]["message"] == told
                else:
                    assert answer.status == 200, answer.body
            assert (await chat(app, two.theirs, two.name(two.theirs))).status == 200

        await check(2, [], {old: "", new: ""})
        await check(1, [], {old: "", new: too_many})
        await check(0, [], {old: no_plan, new: no_plan})
        await check(2, ["other"], {old: no_base, new: no_base})
        await check(2, ["fake"], {old: "", new: ""})
        await check(1, ["fake"], {old: "", new: too_many})
        assert await in_database(remove_adapter, old)
        await check(1, ["fake"], {new: ""})
        await settled(runtime)


async def test_what_no_database_keeps_is_refused_by_its_field(two, tmp_path):
    async with opened(tmp_path) as runtime:
        app, secret = with_runtime(runtime), two.mine.secret
        content = form(tensors(), filename="adapter_model.safetensors", purpose="adapter")
        file = (await ask(app, "/v1/files", content, headers=TYPE, key=secret)).json()["id"]
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
        body = {"base": "fake", "name": "fresh", "file_id": file, "config": config}
        for field, code, value in (
            ("base", "invalid_value", "\0"),
            ("description", "invalid_value", "\0"),
            ("file_id", "invalid_value", "file-\0"),
            ("name", "adapter_refused", "\0"),
            ("name", "adapter_refused", "../own"),
            ("config", "adapter_refused", config | {"revision": "\0"}),
            ("config", "adapter_refused", config | {"revision": "x" * 1_000_001}),
        ):
            refused = await ask(app, "/v1/adapters", body | {field: value}, key=secret)
            assert_error(refused, 400, code, param=field)
        for method in ("GET", "DELETE"):
            gone = await ask(app, "/v1/adapters/a\0b", method=method, key=secret)
            assert_error(gone, 404, "adapter_not_found")


async def test_nothing_is_copied_for_whom_the_plan_or_the_config_refuses(two, tmp_path, monkeypatch):
    """Else a tenant without adapters would let the disk turn as often as it asks."""
    copied = []
    monkeypatch.setattr("gateway.apis.adapters.endpoint._copy", lambda *_: copied.append("copied"))
    async with opened(tmp_path) as runtime:
        app, secret = with_runtime(runtime), two.mine.secret
        content = form(tensors(), filename="adapter_model.safetensors", purpose="adapter")
        file = (await ask(app, "/v1/files", content, headers=TYPE, key=secret)).json()["id"]
        body = {
            "base": "fake",
            "name": "fresh",
            "file_id": file,
            "config": {"peft_type": "LORA", "r": 2, "lora_alpha": 4},
        }
        for changes, param in (
            ({"config": {}}, "config"),
            ({"name": "a/b"}, "name"),
            ({"base": "nobody"}, "base"),
            ({"config": body["config"] | {"r": 65}}, "config.r"),
        ):
            refused = await ask(app, "/v1/adapters", body | changes, key=secret)
            assert_error(refused, 400, "adapter_refused", param=param)

        def end():
            version = plans.publish_version(plans.latest_version("test").plan, adapters=0)
            two.mine.tenant.subscriptions.update(version=version)

        await in_database(end)
        assert_error(await ask(app, "/v1/adapters", body, key=secret), 400, "adapter_refused", param="base")
        assert copied == []


async def test_making_and_deleting_take_requests_of_the_rate(two, tmp_path):
    """Each tells every gateway and worker to read what there is."""

    def narrow():
        version = plans.publish_version(plans.latest_version("test").plan, adapters=2, request_limit=2, request_burst=2)
        two.mine.tenant.subscriptions.update(version=version)

    await in_database(narrow)
    async with opened(tmp_path) as runtime:
        app, secret = with_runtime(runtime), two.mine.secret
        body = {"base": "fake", "name": "fresh", "file_id": "file-none", "config": {}}
        asked = [("/v1/adapters", body, "POST"), ("/v1/adapters/none/own", None, "DELETE")]
        answers = [await ask(app, path, body, method=method, key=secret) for path, body, method in asked * 2]
        assert [answer.status for answer in answers] == [400, 404, 429, 429]
        assert (await ask(app, "/v1/adapters", key=secret)).status == 200


def strip(body):
    """An error without what differs from request to request."""
    body.pop("request_id", None)
    body["error"].pop("request_id", None)
    return body


async def test_rules_and_their_fallbacks_lead_nobody_to_anothers(two, tmp_path):
    def rule():
        made = RouteRule.objects.create(name="to theirs", priority=1)
        for name, is_fallback in ((two.name(two.theirs), False), (two.name(two.mine), True)):
            RouteTarget.objects.create(rule=made, model=PublicModel.objects.get(name=name), is_fallback=is_fallback)

    await in_database(rule)
    async with opened(tmp_path) as runtime:
        app = with_runtime(runtime)
        two.take(runtime)
        for world in (two.mine, two.theirs):
            answer = await chat(app, world, "auto")
            assert answer.json()["model"] == two.name(world)
            usage = await ask(app, f"/v1/usage/{answer.headers['x-request-id']}", key=world.secret)
            other = two.theirs if world is two.mine else two.mine
            assert two.name(other) not in usage.body.decode()
        await settled(runtime)


async def test_a_prefix_of_one_is_not_looked_for_by_the_other(two, tmp_path):
    """What routing knows of caches is by tenant and model; the worker roots its keys in both as well."""
    from gateway.generation.intent import Intent
    from gateway.generation.placement import prefix_of
    from inference.messages import Message
    from inference.types import Kind
    from tests.gateway.world import principal_of

    async with opened(tmp_path) as runtime:
        chains = []
        for world in (two.mine, two.theirs):
            principal = await principal_of(runtime, world)
            for model in ("fake", two.name(two.mine), two.name(two.theirs)):
                intent = Intent(
                    endpoint="chat", kind=Kind.CHAT, model=model, messages=(Message("user", ("x" * 4000,)),)
                )
                chains += prefix_of(model, principal, intent)
        assert len(chains) >= 6
        assert len(set(chains)) == len(chains)


async def test_keys_of_one_can_be_for_its_own_alone(two, tmp_path):
    """What the key is for narrows no bases: those are the plan's."""
    tenant = two.mine.tenant
    names = two.name(two.mine), two.name(two.theirs)
    with pytest.raises(Exception, match="There is no model"):
        await in_database(lambda: Restrictions(names).checked(two.mine.project))

    def narrow():
        plan = plans.latest_version("test")
        version = plans.publish_version(plan.plan, allowed_models=["elsewhere", "fake"])
        tenant.subscriptions.update(version=version)
        restrictions = Restrictions((names[0],))
        return keys.create_key(tenant=tenant, project=two.mine.project, name="own", restrictions=restrictions)[1]

    secret = await in_database(narrow)
    async with opened(tmp_path) as runtime:
        app = with_runtime(runtime)
        two.take(runtime)
        cards = (await ask(app, "/v1/models", key=secret)).json()["data"]
        assert {card["id"] for card in cards} == {"auto", names[0]}
        answer = await ask(app, "/v1/chat/completions", {"model": names[0], "messages": HELLO}, key=secret)
        assert answer.status == 200, answer.body
        refused = await ask(app, "/v1/chat/completions", {"model": "fake", "messages": HELLO}, key=secret)
        assert_error(refused, 403, "model_not_allowed")
        await settled(runtime)


async def test_a_key_for_other_models_has_none_of_its_tenants_own(two, tmp_path):
    def narrow():
        fields = {"tenant": two.mine.tenant, "project": two.mine.project, "name": "base"}
        return keys.create_key(**fields, restrictions=Restrictions(("fake",)))[1]

    secret, own = await in_database(narrow), two.name(two.mine)
    async with opened(tmp_path) as runtime:
        app = with_runtime(runtime)
        two.take(runtime)
        cards = (await ask(app, "/v1/models", key=secret)).json()["data"]
        assert {card["id"] for card in cards} == {"auto", "fake"}
        refused = await ask(app, "/v1/chat/completions", {"model": own, "messages": HELLO}, key=secret)
        assert_error(refused, 403, "model_not_allowed")


async def test_uploaded_used_and_deleted_by_its_tenant_alone(two, tmp_path):
    async with opened(tmp_path) as runtime:
        app = with_runtime(runtime)
        engine = two.take(runtime)
        secret = two.mine.secret
        content = form(tensors(), filename="adapter_model.safetensors", purpose="adapter")
        file = (await ask(app, "/v1/files", content, headers=TYPE, key=secret)).json()["id"]
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
        body = {"base": "fake", "name": "fresh", "file_id": file, "config": config}
        foreign = await ask(app, "/v1/adapters", body, key=two.theirs.secret)
        assert_error(foreign, 400, "invalid_value", param="file_id")
        assert_error(
            await ask(app, "/v1/adapters", body | {"config": {}}, key=secret), 400, "adapter_refused", param="config"
        )
        before = await runtime.catalogue.epoch.current()
        made = await ask(app, "/v1/adapters", body, key=secret)
        assert made.status == 200, made.body
        name = f"{two.mine.tenant.slug}/fresh"
        assert (made.json()["id"], made.json()["status"], made.json()["rank"]) == (name, "loading", 2)
        assert_error(await ask(app, "/v1/adapters", body, key=secret), 400, "adapter_refused")
        listed = (await ask(app, "/v1/adapters", key=secret)).json()["data"]
        assert {one["id"] for one in listed} == {name, two.name(two.mine)}
        assert (await ask(app, f"/v1/adapters/{name}", key=secret)).json() == made.json()
        assert_error(await ask(app, f"/v1/adapters/{name}", key=two.theirs.secret), 404, "adapter_not_found")
        gone = await ask(app, f"/v1/adapters/{name}", method="DELETE", key=two.theirs.secret)
        assert_error(gone, 404, "adapter_not_found")
        while await runtime.catalogue.epoch.current() == before:
            await runtime.catalogue.epoch.next()
        # No worker has it yet, which is no fault of the request.
        assert_error(await chat(app, two.mine, name), 503, "adapter_not_ready")
        assert engine.prepares
        assert (await ask(app, f"/v1/adapters/{name}", method="DELETE", key=secret)).status == 200
        assert_error(await ask(app, f"/v1/adapters/{name}", key=secret), 404, "adapter_not_found")
        await settled(runtime)
