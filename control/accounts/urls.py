"""The pages of people's own accounts: ours of the account itself, and of allauth's pages those listed here.

There is none for addresses: an address is proved by the link of an invitation, a sign-up or a change that a superuser
asks for, and belongs to one user. A second, unproved address could claim somebody else's account.
"""

from __future__ import annotations

from allauth.account import views as account
from django.urls import URLPattern, URLResolver, include, path, re_path

from control.accounts import sessions, views

urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.profile, name="account_profile"),
    path("sessions/end/", sessions.end_others, name="account_end_others"),
    path("sessions/<int:pk>/end/", sessions.end_session, name="account_end_session"),
    path("login/", account.login, name="account_login"),
    path("logout/", account.logout, name="account_logout"),
    path("inactive/", account.account_inactive, name="account_inactive"),
    path("signup/", account.signup, name="account_signup"),
    path("reauthenticate/", account.reauthenticate, name="account_reauthenticate"),
    path("confirm-email/", account.email_verification_sent, name="account_email_verification_sent"),
    re_path(r"^confirm-email/(?P<key>[-:\w]+)/$", account.confirm_email, name="account_confirm_email"),
    path("password/change/", account.password_change, name="account_change_password"),
    path("password/set/", account.password_set, name="account_set_password"),
    path("password/reset/", account.password_reset, name="account_reset_password"),
    path("password/reset/done/", account.password_reset_done, name="account_reset_password_done"),
    path(
        "password/reset/key/done/",
        account.password_reset_from_key_done,
        name="account_reset_password_from_key_done",
    ),
    re_path(
        r"^password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        account.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    path("2fa/", views.factors, name="mfa_index"),
    path("2fa/webauthn/", views.factors, name="mfa_list_webauthn"),
    path("2fa/", include("allauth.mfa.urls")),
]
