"""Users, memberships, invitations, and outgoing mail."""

from __future__ import annotations

from typing import Any, ClassVar

import allauth.account.admin
import allauth.usersessions.admin  # noqa: F401 - both register what is taken out below
from allauth.account.models import EmailAddress
from allauth.usersessions.models import UserSession
from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import UserChangeForm
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from base.errors import ServiceError
from billing.admin.base import ReadOnlyAdmin, take_over, tool
from control.admin.base import KeptAdmin
from tenancy.models import Invitation, Membership, OutgoingMail, User
from tenancy.services import links, members, people, roles


@admin.register(OutgoingMail)
class OutgoingMailAdmin(ReadOnlyAdmin):
    """Mails, newest first."""

    list_display = ["created_at", "to", "subject", "state", "attempts", "next_attempt_at", "error"]
    list_filter = ["state"]
    search_fields = ["to"]
    ordering = ["-id"]
    fields = ["to", "subject", "state", "attempts", "error", "created_at", "next_attempt_at", "ended_at"]
    readonly_fields = fields


admin.site.unregister(Group)  # operators' roles are made by `setup`
admin.site.unregister(EmailAddress)  # a user has one address, changed by the service
admin.site.unregister(UserSession)  # a session's key signs in


class LowerEmail(forms.ModelForm):  # type: ignore[type-arg] # can't be subscripted when it runs
    """Compares addresses as they are kept: in small letters."""

    def clean_email(self) -> str:
        """Return the address as it will be kept."""
        email: str = self.cleaned_data["email"].lower()
        return email


class NewUserForm(LowerEmail):
    """A user without a password: they sign in by link, or set one by reset."""

    class Meta:
        model = User
        fields = ["email", "name", "is_staff", "groups", "is_superuser"]


class ChangedUserForm(LowerEmail, UserChangeForm):  # type: ignore[type-arg] # nor can this
    """A user's fields; the password by its own form."""

    class Meta:
        model = User
        fields = ["email", "name", "password", "is_active", "is_staff", "groups", "is_superuser"]
        help_texts: ClassVar = {"email": "A new address counts once its owner has confirmed the mail that it is sent."}


@admin.register(User)
class UserAdmin(KeptAdmin, DjangoUserAdmin):  # type: ignore[type-arg] # can't be subscripted when it runs
    """People."""

    form = ChangedUserForm
    add_form = NewUserForm
    list_display = ["email", "name", "is_active", "is_staff", "last_login"]
    list_filter = ["is_active", "is_staff"]
    search_fields = ["email", "name"]
    ordering = ["email"]
    filter_horizontal = ()
    row_tools = ["sign_in_link"]

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Return the fields for this operator: only superusers make superusers."""
        may_all = self.has_act_as_permission(request)
        operator = ["is_staff", "groups", *(["is_superuser"] if may_all else [])]
        if obj is None:
            return [(None, {"fields": ["email", "name", *operator]})]
        return [
            (None, {"fields": ["email", "name", *(["password"] if may_all else []), "is_active"]}),
            ("Operator", {"fields": operator}),
            ("Dates", {"fields": ["last_login", "date_joined"]}),
        ]

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Let a page say which address it showed, so that an older page asks for no change back."""
        if db_field.name == "email":
            options["show_hidden_initial"] = True
        return super().formfield_for_dbfield(db_field, request, **options)

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Offer the groups that this operator may give."""
        if db_field.name == "groups":
            assert isinstance(request.user, User)
            options["queryset"] = roles.groups_of(request.user)
        return super().formfield_for_manytomany(db_field, request, **options)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Nobody changes who may do more than they."""
        assert isinstance(request.user, User)
        return super().has_change_permission(request, obj) and not (obj and roles.outranks(obj, request.user))

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> list[str]:
        """Show the address to operators who may not change it."""
        dates = ["last_login", "date_joined"]
        return dates if obj is None or self.has_act_as_permission(request) else ["email", *dates]

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Save; another address once its owner has opened the link of a mail to it. A page that is saved with the
        present address takes back what was asked for before.
        """
        email, obj.email = obj.email, form.initial.get("email", obj.email)
        if change:
            super().save_model(request, obj, form, change)
            if "email" in form.changed_data or (email == obj.email and "email" in form.fields):
                people.ask_for_address(user=obj, email=email)
            if obj.address_ask and "email" in form.changed_data:
                text = f"A mail to {email} asks to confirm the new address. Until then it stays {obj.email}."
                messages.info(request, text)
            return
        obj.set_unusable_password()
        super().save_model(request, obj, form, change)
        User.objects.confirm_address(obj)

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002
        """Set another person's password: for superusers."""
        if not self.has_act_as_permission(request):
            raise PermissionDenied
        response: HttpResponse = super().user_change_password(request, id, form_url)
        return response

    @tool("Make a sign-in link", path="sign-in-link", permission="act_as")
    def sign_in_link(self, request: HttpRequest, user: User) -> HttpResponse:
        """Ask, and once that is confirmed show a link that signs this user in once, within a quarter of an hour."""
        back = reverse("admin:gateway_user_change", args=[user.pk])
        if request.method != "POST":
            rights = ", with the rights of an operator" if user.is_staff else ""
            told = (
                f"Whoever opens the link within 15 minutes is signed in as {user.email}, once{rights}. It is shown to "
                "you alone; give it to nobody else. Making it stands in the audit trail."
            )
            return self.asking(request, title="Make a sign-in link", told=told, button="Make a link", back=back)
        try:
            address = links.mint_link(user=user)
        except ServiceError as refused:
            messages.error(request, refused.message)
        else:
            self.log_change(request, user, "Made a sign-in link.")
            messages.success(request, f"For {user.email}, once, within 15 minutes: {address}")
        return redirect(back)

    def has_act_as_permission(self, request: HttpRequest, user: Any = None) -> bool:
        """Only superusers may act as another user: by a link, or by a password or address that lets them in."""
        return bool(getattr(request.user, "is_superuser", False))


@admin.register(Membership)
class MembershipAdmin(KeptAdmin):
    """Memberships: user, tenant, role."""

    list_display = ["user", "tenant", "role", "is_active", "created_at"]
    list_filter = ["role", "is_active"]
    list_select_related = ["user", "tenant"]
    search_fields = ["user__email", "tenant__name", "tenant__slug"]
    autocomplete_fields = ["user", "tenant"]
    fields = ["tenant", "user", "role", "is_active"]

    def get_readonly_fields(self, request: HttpRequest, obj: Membership | None = None) -> list[str]:
        """A membership stays whose it is."""
        return ["tenant", "user"] if obj else []

    def save_model(self, request: HttpRequest, obj: Membership, form: Any, change: bool) -> None:
        """Change the role or end the membership through the service, which keeps an owner."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        stored = Membership.objects.of(obj.tenant).get(pk=obj.pk)
        ended: list[members.EndedKey] = []
        if obj.role != stored.role:
            ended += members.change_role(tenant=obj.tenant, membership=stored, role=obj.role)
        if stored.is_active and not obj.is_active:
            ended += members.remove_member(tenant=obj.tenant, membership=stored)
        elif obj.is_active and not stored.is_active:
            obj.save(update_fields=["is_active"])
        for key in ended:
            messages.warning(request, f"{key}.")


@admin.register(Invitation)
class InvitationAdmin(KeptAdmin):
    """Invitations; "add" sends the mail and shows the address once."""

    list_display = ["email", "tenant", "role", "expires_at", "accepted_at"]
    list_filter = ["role"]
    list_select_related = ["tenant"]
    search_fields = ["email", "tenant__name"]
    autocomplete_fields = ["tenant"]
    fields = ["tenant", "email", "role"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """An invitation is replaced by another, never changed."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Invitation | None = None) -> bool:
        """An invitation can be taken back while it is open."""
        return obj is not None and obj.accepted_at is None

    def save_model(self, request: HttpRequest, obj: Invitation, form: Any, change: bool) -> None:
        """Invite through the service, and send the address."""
        invitation, address = members.invite_by_mail(tenant=obj.tenant, email=obj.email, role=obj.role)
        take_over(obj, invitation)
        messages.info(request, f"The invitation's address, also sent by mail: {address}")
