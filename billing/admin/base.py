"""Bases of the admins of credit: amounts in credits, read-only pages, forms that call services."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, AdminForm
from django.contrib.admin.widgets import AdminSplitDateTime, AutocompleteSelect
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db.models import DateTimeField, ForeignKey, Q, QuerySet
from django.forms import BaseInlineFormSet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from base.ids import request_id_in
from base.units import format_credits, parse_credits
from billing.models import Wallet
from billing.services.errors import CreditError

if TYPE_CHECKING:
    ServiceForm = forms.ModelForm[Any]
    AnyPaginator = Paginator[Any]
    AnyAdmin = admin.ModelAdmin[Any]
    AnyInline = admin.TabularInline[Any, Any]
    AnyFormSet = BaseInlineFormSet[Any, Any, Any]
else:  # none can be subscripted when it runs
    ServiceForm, AnyPaginator, AnyAdmin, AnyInline = forms.ModelForm, Paginator, admin.ModelAdmin, admin.TabularInline
    AnyFormSet = BaseInlineFormSet

Page = TypeVar("Page", bound=Callable[..., HttpResponse])


def tool(title: str, *, path: str, permission: str) -> Callable[[Page], Page]:
    """Make a method of an admin the page of a tool, for operators with the permission. A tool of a row is called with
    the row.
    """

    def marked(page: Page) -> Page:
        page.__dict__.update(title=title, path=path, permission=permission)
        return page

    return marked


def credits_column(field: str, description: str, *, ordering: bool = True) -> Any:
    """Return a list column that shows a µcr field in credits."""

    @admin.display(description=description, ordering=field if ordering else None)
    def column(_: Any, row: Any) -> str:
        amount = getattr(row, field)
        return "–" if amount is None else format_credits(amount, separator=",")

    return column


def state_mark(word: str, tone: str) -> SafeString:
    """Return a state in its colour: `tone` is good, warn, bad or quiet."""
    return format_html('<span class="state {}">{}</span>', tone, word)


def two_lines(first: object, second: object) -> SafeString:
    """Return a cell of a list with a second line in small print, if there is one."""
    return format_html("{}<br><small>{}</small>", first, second) if second else format_html("{}", first)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> SafeString:
    """Return an HTML table, numbers aligned to the right, or the text `empty` when there is no row."""
    cells = [list(row) for row in rows]
    if not cells:
        return format_html("{}", empty)

    def line(tag: str, row: Sequence[object]) -> SafeString:
        return format_html_join("", f"<{tag}{{}}>{{}}</{tag}>", ((_side(cell), cell) for cell in row))

    body = format_html_join("", "<tr>{}</tr>", ((line("td", row),) for row in cells))
    head = line("th", heads)
    return format_html(
        '<div class="field-table"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>', head, body
    )


def _side(cell: object) -> SafeString:
    return SafeString(' class="number"' if re.fullmatch(r"-?[\d,.]+", str(cell)) else "")


class CreditsField(forms.CharField):
    """An amount typed in credits, cleaned to µcr."""

    def __init__(self, *, is_signed: bool = False, **options: Any) -> None:
        """`is_signed` allows amounts below zero."""
        super().__init__(**options)
        self.is_signed = is_signed

    def prepare_value(self, value: Any) -> Any:
        return format_credits(value) if isinstance(value, int) else value

    def clean(self, value: Any) -> int | None:
        text = super().clean(value)
        if not text:
            return None
        try:
            amount = parse_credits(text)
        except ValueError as error:
            raise ValidationError(str(error)) from error
        if amount < 0 and not self.is_signed:
            raise ValidationError("must not be below zero")
        return amount


class ReasonForm(forms.Form):
    """Why something is done."""

    reason = forms.CharField(max_length=200, help_text="Kept in the history.")


class BoundedPaginator(AnyPaginator):
    """Counts rows up to `most` only: counting a whole ledger for each page would take longer and longer."""

    most = 10_000

    @cached_property
    def count(self) -> int:
        """How many rows there are, at most `most`; older ones are found by filter or search."""
        rows = cast("QuerySet[Any]", self.object_list)
        return rows.order_by().values("pk")[: self.most].count()  # without what a row shows of others


class RowSelect(AutocompleteSelect):
    """A search field for a row; an id that can't be a row's shows none: Django would fail as it filters by it."""

    def optgroups(self, name: str, value: Any, attr: Any = None) -> Any:
        key = self.field.target_field
        return super().optgroups(name, [one for one in value if one and _could_be(key, one)], attr)


class MomentWidget(AdminSplitDateTime):
    """Django's boxes of a day and a time, each with a name for those who don't see the words before it."""

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context(name, value, attrs)
        for box, called in zip(context["widget"]["subwidgets"], ("Date", "Time"), strict=True):
            box["attrs"]["aria-label"] = called
        return context


class NamedFields(AnyFormSet):
    """Rows in a table below a form: each box says its column's name to those who don't see the table."""

    def add_fields(self, form: Any, index: int | None) -> None:
        super().add_fields(form, index)
        for name, field in form.fields.items():
            field.widget.attrs.setdefault("aria-label", str(field.label or name))


class RowsInline(AnyInline):
    """Rows of another table in a row's form."""

    formset = NamedFields
    fields: ClassVar[Any] = None
    readonly_fields: ClassVar[Any] = ()


class RowsAdmin(AnyAdmin):
    """The base of every admin here: an id that can't be one of its rows' names no row, and breaks no page.

    Beside Django's own pages it has tools, links above a row's form (`row_tools`) and above the list (`list_tools`).
    """

    list_per_page = 50
    formfield_overrides: ClassVar[Any] = {DateTimeField: {"widget": MomentWidget}}
    fields: ClassVar[Any] = None
    readonly_fields: ClassVar[Any] = ()
    row_tools: Sequence[str] = ()
    list_tools: Sequence[str] = ()

    def get_urls(self) -> list[URLPattern]:
        """Add the page of each tool, which has its method's name."""

        def page(name: str, place: str) -> URLPattern:
            view = self.admin_site.admin_view(partial(self._open, name))
            named = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
            return path(f"{place}{getattr(self, name).path}/", view, name=named)

        tools = [page(name, "") for name in self.list_tools]
        tools += [page(name, "<path:object_id>/") for name in self.row_tools]
        return [*tools, *super().get_urls()]

    def _open(self, name: str, request: HttpRequest, object_id: str | None = None) -> HttpResponse:
        """Open a tool's page, of a row that there is, for those who may."""
        row = () if object_id is None else (self.existing(request, object_id),)
        if not self._may(name, request, *row):
            raise PermissionDenied
        answer: HttpResponse = getattr(self, name)(request, *row)
        return answer

    def _may(self, name: str, request: HttpRequest, *row: Any) -> bool:
        return bool(getattr(self, f"has_{getattr(self, name).permission}_permission")(request, *row))

    def _links(self, request: HttpRequest, names: Sequence[str], *row: Any) -> list[tuple[str, str]]:
        """Return title and address of the tools that this operator may use."""
        named, arguments = f"admin:{self.opts.app_label}_{self.opts.model_name}", [one.pk for one in row]
        return [
            (getattr(self, name).title, reverse(f"{named}_{name}", args=arguments))
            for name in names
            if self._may(name, request, *row)
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list with its tools."""
        tools = self._links(request, self.list_tools)
        answer: HttpResponse = super().changelist_view(request, {"tools": tools, **(extra_context or {})})
        return answer

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **options: Any
    ) -> HttpResponse:
        """Show a row's form with its tools."""
        if options.get("obj") is not None:
            context["tools"] = self._links(request, self.row_tools, options["obj"])
        answer: HttpResponse = super().render_change_form(request, context, *args, **options)
        return answer

    @property
    def media(self) -> forms.Media:
        """With what is needed by filters that are filled in."""
        filters = (one[1] for one in self.list_filter if isinstance(one, tuple))
        return sum((one.media for one in filters if hasattr(one, "media")), super().media)

    def asking(
        self,
        request: HttpRequest,
        form: forms.Form | None = None,
        *,
        title: str,
        button: str,
        back: str,
        template: str = "admin/ask.html",
        **shown: Any,
    ) -> TemplateResponse:
        """Return a page that says what follows (`told`), and asks: by a form where there is something to fill in."""
        page = {"title": title, "opts": self.opts, "button": button, "back": back, "form": form, **shown}
        if form is not None:
            page["adminform"] = AdminForm(cast("Any", form), [(None, {"fields": list(form.fields)})], {})
        context = {**self.admin_site.each_context(request), **page}
        return TemplateResponse(request, template, context, status=400 if form is not None and form.errors else 200)

    def existing(self, request: HttpRequest, object_id: str) -> Any:
        """Return the row that an address names; raise Http404 where there is none."""
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404(f"There is no {self.opts.verbose_name} “{object_id}”.")
        return row

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **options: Any
    ) -> HttpResponse | None:
        """Do the action; with an id that can't be a row's nothing is done: Django would fail as it filters by it."""
        for chosen in request.POST.getlist(ACTION_CHECKBOX_NAME):
            if not _could_be(self.opts.pk, chosen):
                messages.error(request, f"There is no {self.opts.verbose_name} “{chosen[:100]}”: nothing was done.")
                return HttpResponseRedirect(request.get_full_path())
        answer: HttpResponse | None = super().response_action(request, queryset, *args, **options)
        return answer

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Search for a row where it isn't chosen from a list."""
        if db_field.name in self.get_autocomplete_fields(request):
            options.setdefault("widget", RowSelect(db_field, self.admin_site))
        return super().formfield_for_foreignkey(db_field, request, **options)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Begin with what the address gives, without ids that can't be those of rows and moments that are none: a list
        of choices, or the boxes of a day and a time, fail there.
        """
        keys = {field.name: field.target_field for field in self.opts.fields if isinstance(field, ForeignKey)}
        moments = {field.name: field for field in self.opts.fields if isinstance(field, DateTimeField)}
        checked = keys | moments
        given: dict[str, Any] = super().get_changeform_initial_data(request)
        kept = {name: one for name, one in given.items() if name not in checked or _could_be(checked[name], one)}
        return kept | {name: moments[name].to_python(one) for name, one in kept.items() if name in moments}

    def confirmed(
        self,
        request: HttpRequest,
        row: Any,
        form: type[forms.Form],
        act: Callable[[dict[str, Any]], str],
        *,
        title: str,
        told: str,
        button: str,
    ) -> HttpResponse:
        """Say what follows and ask; once the form is sent, do it: `act` takes what was filled in and returns what it
        did, which is noted in the row's history.
        """
        given = form(request.POST if request.method == "POST" else None)
        back = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[row.pk])
        if given.is_valid():
            try:
                done = act(given.cleaned_data)
            except (CreditError, ValueError) as refused:
                add_refusal(given, refused)
            else:
                self.log_change(request, row, done)
                messages.success(request, done)
                return HttpResponseRedirect(back)
        return self.asking(request, given, title=title, told=told, button=button, back=back)


def _could_be(key: Any, value: Any) -> bool:
    """Whether `value` can be one of the field `key`."""
    try:
        key.to_python(value)
    except (ValidationError, ValueError):
        return False
    return True


class SearchById(RowsAdmin):
    """Searches long tables by indexed columns only: Django's own search compares text in every row."""

    search_fields = ["pk"]  # makes the admin show a search box

    def rows_named(self, rows: QuerySet[Any], text: str, identifier: UUID | None) -> QuerySet[Any]:
        """Return those of `rows` that `text` names; `identifier` is `text` as a UUID, if it is one."""
        raise NotImplementedError

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return what the search finds, without duplicates."""
        text = search_term.strip()
        if not text:
            return queryset, False
        return self.rows_named(queryset, text, request_id_in(text) or _uuid(text)), False


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def wallets_of_tenants_named(text: str, most: int = 50) -> list[tuple[UUID, UUID]]:
    """Return (wallet, tenant) of at most `most` tenants whose name or slug contains `text`.

    A list and no subquery, so that PostgreSQL knows how few they are and walks its indexes.
    """
    named = Wallet.objects.filter(Q(tenant__name__icontains=text) | Q(tenant__slug__icontains=text))
    return list(named.order_by("tenant__name").values_list("pk", "tenant")[:most])


class ReadOnlyAdmin(RowsAdmin):
    """Rows that can only be viewed."""

    paginator = BoundedPaginator
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class RefusedForm(forms.BaseForm):
    """A form whose input a service refused: shown as typed, with the reason at the field that it names."""

    refused: Exception

    def clean(self) -> Any:
        """Add the reason, which may begin with the field's name and a colon."""
        cleaned = super().clean()
        add_refusal(self, self.refused)
        return cleaned


def add_refusal(form: forms.BaseForm, refused: Exception) -> None:
    """Show why a service refused at the field that the reason names, else above the form."""
    text = "; ".join(refused.messages) if isinstance(refused, ValidationError) else str(refused)
    field, _, rest = text.partition(": ")
    form.add_error(field if field in form.fields else None, rest if field in form.fields else text)


class RefusingAdmin(RowsAdmin):
    """Shows the form again, as it was typed, when saving raises one of `refusals`; nothing is saved then."""

    refusals: tuple[type[Exception], ...]

    def changeform_view(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        try:
            answer: HttpResponse = super().changeform_view(request, *args, **options)
        except self.refusals as refused:
            if request.method != "POST":
                raise
            answer = self.refused(request, refused, *args, **options)
        return answer

    def refused(self, request: HttpRequest, refused: Exception, *args: Any, **options: Any) -> HttpResponse:
        """Return the page of the form as it was sent, with the reason."""
        request.__dict__["refused"] = refused
        answer: HttpResponse = super().changeform_view(request, *args, **options)
        return answer

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        form = super().get_form(request, obj, change, **options)
        refused = request.__dict__.get("refused")
        return form if refused is None else type(form.__name__, (RefusedForm, form), {"refused": refused})


class ServiceAdmin(RefusingAdmin):
    """Rows that a service creates and that are never changed: `save_model` of the "add" form calls the service."""

    paginator = BoundedPaginator
    show_full_result_count = False
    refusals = (CreditError, ValidationError, ValueError)
    add_form: type[ServiceForm]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        if obj is None:
            options["form"] = self.add_form
        return super().get_form(request, obj, change, **options)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return super().get_fields(request, obj) if obj is not None else list(self.add_form.base_fields)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return super().get_readonly_fields(request, obj) if obj is not None else ()

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def named_in(initial: dict[str, Any], field: str) -> UUID | None:
    """Return the id that the address gives for a form's field, None if it isn't a UUID."""
    given = initial.get(field)
    return given if isinstance(given, UUID) else _uuid(str(given))


def take_over(row: Any, made: Any) -> None:
    """Copy the service's new row into the admin's unsaved instance `row`, for the admin's messages and log."""
    row.__dict__.update(made.__dict__)
