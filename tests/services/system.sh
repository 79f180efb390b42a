#!/usr/bin/env bash
# Install what the tests need from the system, where it is missing: PostgreSQL's server, Redis', Chromium, nginx, Caddy, PgBouncer.
# What it installs is not started, now or at the next boot: the tests start their own.
set -euo pipefail
missing=()
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || command -v initdb >/dev/null || missing+=(postgresql)
command -v redis-server >/dev/null || missing+=(redis-server)
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing+=(chromium)
command -v nginx >/dev/null || missing+=(nginx-light)
command -v caddy >/dev/null || missing+=(caddy)
command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # Debian's postgresql package would start a cluster of its own; the tests make theirs.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    # Asked by every package before it starts a service; a machine that has its own says no already, or knows better.
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod 755 /usr/sbin/policy-rc.d
    fi
    RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    if command -v systemctl >/dev/null; then
        for package in "${missing[@]}"; do
            systemctl disable "${package%-light}.service" >/dev/null 2>&1 || true # chromium has none
        done
    fi
else
    echo "the tests need ${missing[*]}: install them with your system's package manager" >&2
    exit 1
fi
