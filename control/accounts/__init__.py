"""Ways to an account: sign-up, sign-in links, invitations."""
