"""The tenant itself, its projects and members."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.mixins import ListModelMixin
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from control.api.authentication import AdminKeyAuthentication, KeyAuthentication, TenantSessionAuthentication
from control.api.base import ByName, NewestFirst, TenantView
from control.api.parsers import KnownFields
from control.belongings.download import CONTENT_TYPE, tenants_archive
from control.throttles import InvitationThrottle
from gateway.errors.refusal import Refusal
from tenancy.models import Membership, Project, Tenant
from tenancy.services import members, tenants

_PEOPLE: Any = [{"session": []}]  # a management key decides neither about people nor about settings
_OWNERS: Any = [{"adminKey": []}, {"session": []}]


class TenantSerializer(KnownFields, serializers.ModelSerializer[Tenant]):
    """The tenant, with what its owners and admins decide."""

    class Meta:
        model = Tenant
        fields = ["id", "name", "slug", *tenants.SETTINGS, *tenants.RETENTION, "created_at"]
        read_only_fields = ["id", "name", "slug", "created_at"]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a body that changes nothing."""
        if not attrs:
            first, *more = [*tenants.SETTINGS, *tenants.RETENTION]
            raise serializers.ValidationError({first: f"Send one of {', '.join([first, *more])}."})
        return attrs


class TenantSettingsView(TenantView):
    """The tenant."""

    writes = "settings"
    serializer_class = TenantSerializer

    @extend_schema(operation_id="tenant_read", summary="Show the tenant and its settings")
    def get(self, request: Request) -> Response:
        """Return the tenant."""
        return Response(TenantSerializer(self.tenant).data)

    @extend_schema(operation_id="tenant_change", summary="Change the tenant's settings", auth=_PEOPLE)
    def patch(self, request: Request) -> Response:
        """Say whether its responses are stored ("forbidden" deletes those that are), what becomes of hosted tools, and
        for how many days responses, files, batches and refused requests are kept: owners and admins, signed in.
        """
        wanted = self.get_serializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        changed = tenants.set_settings(tenant=self.tenant, **wanted.validated_data)
        return Response(TenantSerializer(changed).data)


class ZipRenderer(JSONRenderer):
    """For who accepts nothing but an archive, which no renderer makes; errors are JSON all the same."""

    media_type = CONTENT_TYPE
    format = "zip"


class TenantExportView(TenantView):
    """Everything that the tenant has."""

    reads = "export"
    authentication_classes = [AdminKeyAuthentication, KeyAuthentication, TenantSessionAuthentication]
    renderer_classes = [JSONRenderer, ZipRenderer]

    @extend_schema(
        operation_id="tenant_export",
        summary="Download everything that the tenant has",
        auth=_OWNERS,
        responses={(200, CONTENT_TYPE): OpenApiTypes.BINARY},
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        """Send a ZIP archive while it is made: a file of JSON lines for each kind of rows, the files and adapters, and
        last `manifest.json` with each member's rows, bytes and SHA-256. For owners, signed in or by an admin key.
        """
        return tenants_archive(self.tenant)


class ProjectSerializer(KnownFields, serializers.ModelSerializer[Project]):
    """A project."""

    class Meta:
        model = Project
        fields = ["id", "name", "is_active", "created_at"]
        read_only_fields = ["id", "is_active", "created_at"]


@extend_schema_view(get=extend_schema(operation_id="projects_list", summary="List projects"))
class ProjectsView(ListModelMixin, TenantView):
    """The tenant's projects."""

    writes = "projects"
    serializer_class = ProjectSerializer
    pagination_class = ByName

    def get_queryset(self) -> QuerySet[Project]:
        """Return the tenant's projects."""
        return Project.objects.of(self.tenant)

    def get(self, request: Request) -> Response:
        """List the projects by name."""
        return self.list(request)

    @extend_schema(operation_id="projects_create", summary="Make a project", responses={201: ProjectSerializer})
    def post(self, request: Request) -> Response:
        """Make a project."""
        wanted = self.get_serializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        project = tenants.create_project(tenant=self.tenant, name=wanted.validated_data["name"])
        return Response(ProjectSerializer(project).data, status=status.HTTP_201_CREATED)


class MemberSerializer(KnownFields, serializers.ModelSerializer[Membership]):
    """A member: a person and their role."""

    email = serializers.EmailField(source="user.email", read_only=True)

    class Meta:
        model = Membership
        fields = ["id", "email", "role", "created_at"]
        read_only_fields = ["id", "created_at"]


class InviteSerializer(KnownFields):
    """Whom to invite as what."""

    email = serializers.EmailField()
    role = serializers.ChoiceField(choices=Membership.Role.choices, default=Membership.Role.MEMBER)


class EndedKeySerializer(serializers.Serializer[Any]):
    """A key that ended with its maker's role: `revoked`, or it only lost the scope `management`."""

    id = serializers.UUIDField(read_only=True)
    name = serializers.CharField(read_only=True)
    is_admin_key = serializers.BooleanField(read_only=True)
    revoked = serializers.BooleanField(read_only=True)


class ChangedMemberSerializer(MemberSerializer):
    """A member with another role, and the keys that ended with the one before."""

    ended_keys = EndedKeySerializer(many=True, read_only=True)

    class Meta(MemberSerializer.Meta):
        fields = [*MemberSerializer.Meta.fields, "ended_keys"]


class InvitedSerializer(serializers.Serializer[Any]):
    """An invitation that went out by mail. Its link stands only there: whoever opens it proves to own the address."""

    email = serializers.EmailField(read_only=True)
    role = serializers.CharField(read_only=True)
    expires_at = serializers.DateTimeField(read_only=True)


@extend_schema_view(get=extend_schema(operation_id="members_list", summary="List members"))
class MembersView(ListModelMixin, TenantView):
    """The tenant's active members."""

    writes = "members"
    serializer_class = MemberSerializer
    pagination_class = NewestFirst

    def get_throttles(self) -> list[BaseThrottle]:
        """Count invitations by tenant too."""
        more = [InvitationThrottle()] if self.request.method == "POST" else []
        return [*super().get_throttles(), *more]

    def get_queryset(self) -> QuerySet[Membership]:
        """Return the tenant's active memberships."""
        return Membership.objects.of(self.tenant).filter(is_active=True).select_related("user")

    def get(self, request: Request) -> Response:
        """List the members, newest first."""
        return self.list(request)

    @extend_schema(
        operation_id="members_invite",
        auth=_PEOPLE,
        summary="Invite a member",
        request=InviteSerializer,
        responses={201: InvitedSerializer},
    )
    def post(self, request: Request) -> Response:
        """Send an invitation by mail; an open one to the same address is replaced."""
        wanted = InviteSerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        _refuse_role(self, wanted.validated_data["role"])
        invitation, _ = members.invite_by_mail(tenant=self.tenant, by=self.access.user, **wanted.validated_data)
        return Response(InvitedSerializer(invitation).data, status=status.HTTP_201_CREATED)


class MemberView(TenantView):
    """One member."""

    writes = "members"
    serializer_class = MemberSerializer

    def _membership(self, pk: str) -> Membership:
        mine = Membership.objects.of(self.tenant).filter(is_active=True).select_related("user")
        membership: Membership = get_object_or_404(mine, pk=pk)
        _refuse_role(self, membership.role)
        return membership

    @extend_schema(
        operation_id="members_change",
        auth=_PEOPLE,
        summary="Give a member another role",
        request=MemberSerializer,
        responses={200: ChangedMemberSerializer},
    )
    def patch(self, request: Request, pk: str) -> Response:
        """Change the member's role; a tenant keeps an owner. What keys of theirs may do beyond the new role ends."""
        membership = self._membership(pk)
        wanted = self.get_serializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        role = wanted.validated_data.get("role", membership.role)
        _refuse_role(self, role)
        membership.role, ended = role, members.change_role(tenant=self.tenant, membership=membership, role=role)
        shown = MemberSerializer(membership).data
        return Response({**shown, "ended_keys": EndedKeySerializer(ended, many=True).data})

    @extend_schema(
        operation_id="members_remove",
        auth=_PEOPLE,
        summary="Remove a member",
        responses={200: EndedKeySerializer(many=True)},
    )
    def delete(self, request: Request, pk: str) -> Response:
        """Remove the member and revoke the keys that they made, which the answer lists; a tenant keeps an owner."""
        ended = members.remove_member(tenant=self.tenant, membership=self._membership(pk))
        return Response(EndedKeySerializer(ended, many=True).data)


def _refuse_role(view: TenantView, role: str) -> None:
    if not view.access.may_give_role(role):
        raise Refusal(403, "role_not_allowed", "Only owners decide about owners.", param="role")
