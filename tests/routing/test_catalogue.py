import pytest
from django.db import connection

from routing.catalogue import load
from routing.models import RouteRule
from routing.services.catalogue import add_model, remove_model, set_alias, slug_of
from routing.services.defaults import ensure_default_routes

pytestmark = pytest.mark.django_db


def add(name, kind):
    return add_model(name=name, kinds=[kind], context_length=100, rate_card=name, source="/models/x")


def test_snapshot_holds_what_is_active(django_assert_num_queries):
    add("Org/Chat-1", "chat")
    add("vec", "embedding")
    ensure_default_routes()
    with django_assert_num_queries(6):
        book = load()
    assert set(book.models) == {"Org/Chat-1", "vec"}
    assert [entry.name for entry in book.deployments["Org/Chat-1"]] == ["org-chat-1"]
    [chat] = book.deployments["Org/Chat-1"]
    assert [(replica.place, replica.weight) for replica in chat.replicas] == [("local", 1)]
    assert [(rule.name, rule.targets) for rule in book.rules] == [
        ("embeddings", (("vec", 1),)),
        ("general chat", (("Org/Chat-1", 1),)),
    ]
    assert remove_model("vec")
    assert not remove_model("vec")
    book = load()
    assert set(book.models) == {"Org/Chat-1"}
    assert book.rules[0].targets == ()


def test_an_alias_means_its_target_unless_a_model_has_the_name():
    add("small", "chat")
    set_alias("gpt-4o", "small")
    set_alias("gpt-4o", "auto:code")
    set_alias("old", "small")
    book = load()
    assert [book.named(name) for name in ("gpt-4o", "old", "small", "auto", "none")] == [
        *("auto:code", "small", "small", "auto", "none")
    ]
    add("old", "chat")
    set_alias("gpt-4o", "")
    assert [load().named(name) for name in ("gpt-4o", "old")] == ["gpt-4o", "old"]


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("small", "auto", "is a model already"),
        ("auto:x", "small", "is a model already"),
        ("new", "none", "no model none"),
    ],
)
def test_an_alias_takes_no_models_name_and_means_a_model(name, target, reason):
    add("small", "chat")
    with pytest.raises(ValueError, match=reason):
        set_alias(name, target)


def test_a_model_that_comes_while_it_is_read_is_left_out_whole():
    add("early", "chat")

    def late_comer(execute, sql, *rest):
        if not added and 'FROM "routing_publicmodel"' not in sql:  # the models have been read
            added.append(sql)
            add("late", "chat")
            ensure_default_routes()
        return execute(sql, *rest)

    added = []
    with connection.execute_wrapper(late_comer):
        book = load()
    assert set(book.models) == set(book.deployments) == {"early"}
    assert [rule.targets for rule in book.rules] == [(("early", 1),)]
    assert set(load().deployments) == {"early", "late"}


def test_adding_again_changes_the_row_and_revives_it():
    first = add("a", "chat")
    remove_model("a")
    assert add("a", "chat").id == first.id
    assert [entry.name for entry in load().all_deployments()] == ["a"]


def test_names_that_make_the_same_slug_have_deployments_of_their_own():
    rows = [add(name, "chat") for name in ("a-b", "a.b", "a b")]
    assert [row.name for row in rows] == ["a-b", "a-b-2", "a-b-3"]
    assert [add(name, "chat").id for name in ("a-b", "a.b", "a b")] == [row.id for row in rows]
    assert [row.model.name for row in rows] == ["a-b", "a.b", "a b"]


def test_default_routes_keep_what_operators_made_of_them():
    add("a", "chat")
    ensure_default_routes()
    RouteRule.objects.filter(name="general chat").update(priority=5, is_active=False)
    ensure_default_routes()
    assert RouteRule.objects.get(name="general chat").priority == 5
    assert RouteRule.objects.count() == 1


def test_slug_keeps_letters_and_digits():
    assert slug_of("HuggingFaceTB/SmolLM2-1.7B") == "huggingfacetb-smollm2-1-7b"
