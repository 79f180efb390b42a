"""The list of requests, ran, running and refused, for both sides; and finding one by any form of its id."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from itertools import chain
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from base.ids import uuid7
from billing.models import Hold, Wallet
from billing.selectors import requests as ran
from control.belongings.download import _lines
from control.screens import requests
from control.screens.request import phases_of
from gateway.errors.advice import _BY_CODE
from gateway.runtime.models import RefusalCount, RefusedRequest
from tenancy.models import User
from tests.billing.conftest import open_hold

pytestmark = pytest.mark.django_db
LINK = re.compile(r'/requests/([0-9a-f-]{36})/[^"]*"')


def at(seconds):
    """Return an id made so many seconds ago."""
    return uuid7(int((timezone.now() - timedelta(seconds=seconds)).timestamp() * 1000))


def refuse(party, *, request=None, count=True, **fields):
    given = {
        "status": 404, "code": "model_not_found", "message": "There is no model 'gpt-4o'.", "param": "model",
        "model": "gpt-4o", "endpoint": "/v1/chat/completions", "api_key": party.key.id, **fields,
    }  # fmt: skip
    row = RefusedRequest(id=request or uuid7(), at=timezone.now(), tenant=party.tenant, **given)
    row.save(force_insert=True)
    if count:
        RefusalCount(
            id=uuid7(), minute=timezone.now().replace(second=0, microsecond=0), tenant=party.tenant, count=1,
            status=row.status, code=row.code, last_request=row.id, last_at=timezone.now(), api_key=party.key,
        ).save(force_insert=True)  # fmt: skip
    return row.id


def run(party, request=None):
    hold = open_hold(Wallet.objects.get(tenant=party.tenant), 1_500_000)
    if request:
        Hold.objects.filter(pk=hold.pk).update(id=request)
    return request or hold.id


@pytest.fixture
def operator():
    client = Client()
    client.force_login(
        User.objects.create_superuser("operator@x.example"), backend="django.contrib.auth.backends.ModelBackend"
    )
    return client


def shown(client, address="/requests/", **query):
    page = client.get(address, query)
    assert page.status_code == 200
    return list(dict.fromkeys(map(UUID, LINK.findall(page.content.decode()))))


def flat(found):
    return list(chain.from_iterable(found))


def pages(client, address, meanwhile, link="Older"):
    """Return the ids of each page from `address` on."""
    found = []
    while address:
        content = client.get(address).content.decode()
        found.append(list(dict.fromkeys(map(UUID, LINK.findall(content)))))
        last, address = address, (re.search(rf'href="([^"]*)">{link}<', content) or [None, None])[1]
        address = address and address.replace("&amp;", "&")
        meanwhile()
    return found, last


@pytest.fixture
def mixed(acme, other, used):
    """Thirty requests of acme, newest first: every third refused, and some that run; others' between them."""
    made = []
    for number in range(30):
        request = at(1000 - 10 * number)
        if number % 3 == 2:
            refuse(acme, request=request)
        elif number % 10 == 0:
            run(acme, request)
        else:
            used(acme, request=request)
        used(other, request=at(1000 - 10 * number - 5))
        made.append(request)
    return made[::-1]


def test_all_kinds_stand_in_one_order_on_pages_that_inserts_do_not_move(acme, used, mixed, monkeypatch):
    monkeypatch.setattr(requests.Requests.page, "__defaults__", (7,))
    found, last = pages(acme.client(), "/requests/", lambda: (used(acme), refuse(acme), run(acme)))
    assert [len(page) for page in found] == [7, 7, 7, 7, 2]
    assert flat(found) == mixed
    back, _ = pages(acme.client(), last, lambda: None, link="Newer")
    assert flat(reversed(back))[-30:] == mixed
    assert len(set(flat(back))) == len(flat(back)) == 30 + 3 * 5


def test_everybody_sees_their_own_and_the_operator_all(acme, other, used, mixed, operator):
    assert shown(acme.client()) == mixed
    assert not set(shown(other.client())) & set(mixed)
    everything = shown(operator, "/operate/requests/")
    assert len(everything) == 50
    assert everything == sorted(everything, reverse=True)
    assert shown(operator, "/operate/requests/", tenant="acme") == mixed
    assert shown(operator, "/operate/requests/", tenant="nobody") == []
    assert acme.client().get("/operate/requests/").status_code == 404


def test_each_filter_leaves_its_own(acme, used, operator):
    slow = used(acme, duration_ms=61_000, model="large")
    estimated = used(acme, exact=False, finish="engine_lost")
    chat = used(acme, key=False)
    wrong, down = refuse(acme), refuse(acme, status=503, code="no_ready_deployment", model="large", api_key=None)
    runs = run(acme)
    old = used(acme, request=at(40 * 86_400))
    client = acme.client()
    assert set(shown(client)) == {slow, estimated, chat, wrong, down, runs}
    assert set(shown(client, hours="2160")) == {slow, estimated, chat, wrong, down, runs, old}
    assert shown(client, state="running") == [runs]
    assert set(shown(client, state="refused")) == {wrong, down}
    assert (shown(client, state="4xx"), shown(client, state="5xx")) == ([wrong], [down])
    assert set(shown(client, state="ran")) == {slow, estimated, chat}
    assert set(shown(client, model="large")) == {slow, down}
    assert set(shown(client, key=str(acme.key.id))) == {slow, estimated, wrong}
    assert shown(client, member=str(acme.owner.id)) == [chat]
    assert shown(client, end="engine_lost") == [estimated]
    assert shown(client, end="model_not_found") == [wrong]
    assert (shown(client, exact="no"), shown(client, least="60")) == ([estimated], [slow])
    since = (timezone.now() - timedelta(days=41)).strftime("%Y-%m-%dT%H:%M:%SZ")
    until = (timezone.now() - timedelta(days=39)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert shown(client, since=since, until=until) == [old]
    assert set(shown(client, key="nonsense", hours="7", exact="maybe", least="-1", before="x", since="then")) == {
        slow, estimated, chat, wrong, down, runs,
    }  # fmt: skip
    deployment = str(ran.record_at(slow, None).deployment)
    assert shown(operator, "/operate/requests/", deployment=deployment) == [slow]


def test_rare_ones_are_found_by_looking_on_never_further_than_so_many(acme, used, monkeypatch):
    monkeypatch.setattr(ran, "MOST_READ", 10)
    monkeypatch.setattr(requests, "MOST_READ", 10)
    rare = [
        used(acme, request=at(900 - number), model="rare" if number in {3, 17} else "usual") for number in range(40)
    ]
    refused = refuse(acme, request=at(899.5), model="rare")
    found, _ = pages(acme.client(), "/requests/?model=rare", lambda: None)
    assert flat(found) == [rare[17], rare[3], refused]
    assert len(found) == 4
    content = acme.client().get("/requests/?model=rare").content.decode()
    assert "10 requests were looked through, to " in content


def test_the_chart_counts_both_and_its_bars_lead_to_their_requests(acme, used):
    for _ in range(3):
        used(acme)
    refuse(acme)
    refuse(acme)
    content = acme.client().get("/requests/", {"hours": "24"}).content.decode()
    assert "Ran: 3\nRefused: 2" in content
    bar = re.search(r'<a href="([^"]*)" class="bar" aria-label="[^"]*: 5', content)[1].replace("&amp;", "&")
    query = parse_qs(urlsplit(bar).query)
    begin, end = (datetime.fromisoformat(query[name][0]) for name in ("since", "until"))
    assert end - begin == timedelta(hours=1)
    assert len(shown(acme.client(), bar)) == 5
    narrowed = (
        acme.client().get("/requests/", {"hours": "24", "state": "refused", "end": "model_not_found"}).content.decode()
    )
    assert "Refused: 2" not in narrowed  # one series names itself
    assert ": 2" in re.search(r'class="bar" aria-label="([^"]*: 2[^"]*)"', narrowed)[1]


def forms_of(request):
    return [
        str(request), request.hex, f"chatcmpl-{request.hex}", f"cmpl-{request.hex}", f"resp_{request.hex}",
        f"msg_{request.hex}", f"msg_{request.hex}_i0", f" {request} ",
    ]  # fmt: skip


def test_a_request_is_found_by_any_form_of_its_id_on_both_sides(acme, used, operator):
    for request in (used(acme), run(acme), refuse(acme)):
        for client, page in ((acme.client(), "console-request"), (operator, "operate-request")):
            address = reverse(page, args=[request])
            assert client.get(address).status_code == 200
            lists = address.replace(f"{request}/", "")
            for form in forms_of(request):
                assert client.get(lists, {"id": form}).headers["location"] == address
            for form in forms_of(request)[1:-1]:
                assert client.get(f"{lists}{form}/").headers["location"] == address
    page = acme.client().get("/requests/", {"id": "chatcmpl-cut"}).content.decode()
    assert "“chatcmpl-cut” is no request’s id" in page


def test_former_addresses_lead_on(acme, used):
    request = used(acme)
    assert acme.client().get(f"/usage/requests/{request}/").headers["location"] == f"/requests/{request}/"
    assert (
        f'"request": "{reverse("console-request", args=[UUID(int=0)])}"' in acme.client().get("/chat/").content.decode()
    )


def test_a_refused_request_says_why_and_what_to_do(acme, other, operator):
    request = refuse(acme)
    text = acme.client().get(f"/requests/{request}/").content.decode()
    for words in (
        "Model not found",
        "There is no model &#x27;gpt-4o&#x27;.",
        "Take auto or a name",
        "<code>model</code>",
    ):
        assert words in text
    assert "Nothing: it didn’t run." in text
    assert 'href="/models/"' in text
    assert other.client().get(f"/requests/{request}/").status_code == 404
    own = operator.get(f"/operate/requests/{request}/").content.decode()
    assert "<dt>Tenant</dt><dd>" in own
    assert "<dt>Tenant</dt>" not in operator.get(f"/operate/requests/{request}/?view=tenant").content.decode()


def test_of_one_that_was_not_kept_the_reasons_of_its_minute_are_told(acme, other):
    minute = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    for party, code in ((acme, "rate_limit_exceeded"), (other, "wallet_frozen")):
        RefusalCount(
            id=uuid7(), minute=minute, tenant=party.tenant, status=429, code=code, count=77, last_request=uuid7(),
            last_at=minute,
        ).save(force_insert=True)  # fmt: skip
    lost = uuid7(int(minute.timestamp() * 1000) + 30_000)
    answer = acme.client().get(f"/requests/{lost}/")
    assert answer.status_code == 404
    assert "Rate limit exceeded" in answer.content.decode()
    assert "Wallet frozen" not in answer.content.decode()
    assert "Neither did it run" in acme.client().get(f"/requests/{uuid7()}/").content.decode()


def test_a_running_request_is_polled_until_it_has_ended(acme, used):
    request = run(acme)
    open_page = acme.client().get(f"/requests/{request}/").content.decode()
    assert f'hx-get="/requests/{request}/" hx-trigger="every 2s" hx-select="#request"' in open_page
    used(acme, request=request)
    assert 'hx-trigger="every' not in acme.client().get(f"/requests/{request}/").content.decode()


def test_the_parts_of_its_time_add_up_and_are_never_less_than_nothing(acme, used):
    arrived = at(60)
    begin = datetime.fromtimestamp((arrived.int >> 80) / 1000, tz=UTC)

    def parts(*, reserved, ttft, took, settled):
        request = uuid7(arrived.int >> 80)
        used(acme, request=request, ttft_ms=ttft, duration_ms=took)
        record = ran.record_at(request, None)
        record.reserved_at = begin + timedelta(milliseconds=reserved)
        record.settled_at = begin + timedelta(milliseconds=settled)
        return [(one.name, one.ms) for one in phases_of(record)]

    names = ("Queue and preparation", "Prefill", "Decode", "Settlement")
    assert parts(reserved=40, ttft=100, took=300, settled=310) == list(zip(names, (40, 60, 200, 10), strict=True))
    assert [ms for _, ms in parts(reserved=-5, ttft=100, took=300, settled=290)] == [0, 100, 200, 0]
    assert [ms for _, ms in parts(reserved=500, ttft=100, took=300, settled=300)] == [100, 0, 200, 0]
    assert parts(reserved=40, ttft=None, took=300, settled=300)[1] == ("Running", 260)


def test_the_csv_has_every_line_and_no_formula(acme, used, monkeypatch):
    used(acme, model="=1+1", charge=1_234_567)
    refuse(acme, message="@SUM(A1)", model="-x")
    run(acme)
    for _ in range(5):
        used(acme)
    page = requests.Requests.page
    monkeypatch.setattr(requests.Requests, "page", lambda self, size=3: page(self, min(size, 3)))
    assert 'filename="requests-acme-' in acme.client().get("/requests/export.csv")["content-disposition"]
    asked = requests.asked_of(requests.Viewer(acme.tenant), QueryDict("hours=24"))
    sent = b"".join(_lines(requests.Requests(asked).csv())).decode()
    rows = list(csv.DictReader(io.StringIO(sent)))
    assert [row["state"] for row in rows] == ["ran"] * 5 + ["running", "refused", "ran"]
    assert (rows[-1]["model"], rows[-1]["credits"], rows[-1]["key_name"]) == ("'=1+1", "1.234567", "all")
    assert (rows[-2]["message"], rows[-2]["model"], rows[-2]["status"]) == ("'@SUM(A1)", "'-x", "404")
    assert {row["tenant"] for row in rows} == {""}


def test_queries_do_not_grow_with_rows(acme, used, operator, django_assert_max_num_queries):
    def fill():
        for _ in range(6):
            used(acme, exact=False)
            used(acme, key=False)
            refuse(acme)
            run(acme)

    for client, address in ((acme.client(), "/requests/"), (operator, "/operate/requests/")):
        client.get(address)
        for _ in range(2):
            fill()
            with django_assert_max_num_queries(15):
                client.get(address, {"model": "smollm2-135m-instruct"})
    for client, address in ((acme.client(), "/requests/"), (operator, "/operate/requests/")):
        for request in (used(acme, key=False), run(acme), refuse(acme)):
            with django_assert_max_num_queries(15):
                client.get(f"{address}{request}/")


def test_there_is_advice_for_codes_that_there_are(settings):
    documented = (settings.BASE_DIR / "docs/errors.md").read_text()
    assert [code for code in _BY_CODE if f"`{code}`" not in documented] == []


@pytest.mark.parametrize(
    "query",
    [
        "since=1970-01-02T00:00:00Z&until=9998-01-01T00:00:00Z",
        "since=1960-01-01T00:00:00Z",
        "until=9999-12-31T23:59:59Z",
        "since=0001-01-01T00:00:00%2B14:00",
    ],
)
def test_no_address_asks_for_more_than_a_year(acme, query):
    answer = acme.client().get(f"/requests/?{query}")
    assert answer.status_code == 200
    assert answer.content.count(b'class="bar"') <= 367


def test_an_id_of_nothing_is_not_found(acme):
    assert acme.client().get("/requests/ffffffff-ffff-7fff-bfff-ffffffffffff/").status_code == 404
