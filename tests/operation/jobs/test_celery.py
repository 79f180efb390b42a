"""Celery over Redis, as it is: the list of jobs, the same Redis as everything else, and no more than somebody takes."""

from __future__ import annotations

import signal
import ssl
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import beat, signals
from celery.worker import state
from kombu import Connection
from redis import ConnectionPool, Redis
from redis.connection import SSLConnection, UnixDomainSocketConnection, parse_url

from billing.jobs import Job
from operation import celery
from operation.celery import QUEUE, app, broker_url
from operation.jobs import tasks
from tests.services.ports import lease_port
from tests.services.redis import RedisServer

ALL = ("~*", "&*")
USERS = ("--user", "default", "on", "nopass", *ALL, "+ping", "--user", "sluice", "on", ">p@w/%", *ALL, "+@all")


@pytest.fixture
def guarded():
    """A server with a socket in its folder that lets the user "sluice" in, and others only ask for life."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-redis-", dir="/tmp"))
    server = RedisServer(folder, lease_port(), ("--unixsocket", str(folder / "socket"), *USERS))
    server.start_again()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def entries():
    """Beat's schedule, as worker and beat make it when they start: once in a process."""
    signals.import_modules.send(sender=app)
    return app.conf.beat_schedule


def test_its_tasks_and_schedule_are_the_list_of_jobs(entries):
    assert {name: entry["schedule"] for name, entry in entries.items()} == {job.name: job.every_s for job in tasks.JOBS}
    assert all(name == entry["task"] for name, entry in entries.items())
    assert {name for name in app.tasks if not name.startswith("celery.")} == set(entries)


def test_a_message_ends_by_itself_but_not_before_clocks_agree(entries):
    for entry in entries.values():
        assert entry["options"]["expires"] >= max(60, entry["schedule"])


def test_a_worker_that_has_to_end_does_so_after_the_current_chunk(monkeypatch):
    chunks = []

    def step():
        chunks.append(1)
        if len(chunks) == 3:
            monkeypatch.setattr(state, "should_stop", 0)
        return True

    monkeypatch.setattr(tasks, "noted", lambda _, run: run())
    tasks.task(Job("busy", step, every_s=1), celery._goes_on)()
    assert len(chunks) == 3


@pytest.mark.parametrize("begins", [signals.worker_init, signals.beat_init], ids=["worker", "beat"])
def test_without_redis_it_says_what_does_the_work(settings, begins):
    settings.REDIS_URL = ""
    with pytest.raises(SystemExit, match=r"needs REDIS_URL.*manage\.py jobs"):
        begins.send(sender=None)


@pytest.fixture(autouse=True)
def alarms(monkeypatch):
    """In how many seconds the process is to end, each time that this is put off."""
    asked = []
    monkeypatch.setattr(celery.signal, "alarm", asked.append)
    return asked


def test_a_worker_that_gets_no_message_ends(alarms):
    """Redis may be restarted while all places of messages are taken: the worker then lives on and takes none."""
    for event in (signals.worker_ready, signals.task_received):
        event.send(sender=None)
    assert alarms == [celery.SILENCE_S] * 2


@pytest.fixture
def signals_as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_as_before")
def test_beat_that_is_told_to_end_sends_its_message_first(settings, alarms):
    """An exception in the middle of sending one could be lost, and beat would go on."""
    settings.REDIS_URL = "redis://there"
    sent = []

    def tick():
        signal.raise_signal(signal.SIGTERM)
        sent.append("message")

    service = beat.Service(app)
    service.scheduler = SimpleNamespace(max_interval=1, tick=tick, close=lambda: None)
    service.start()
    assert sent == ["message"]
    assert alarms == [celery.SILENCE_S, celery.LAST_MESSAGE_S]


@pytest.fixture
def server(monkeypatch):
    """The app's broker for one test."""
    server = RedisServer.start()
    monkeypatch.setitem(app.conf, "broker_url", broker_url(server.url))
    monkeypatch.setitem(app.conf, "broker_read_url", None)
    monkeypatch.setitem(app.conf, "broker_write_url", None)
    yield server
    app.close()
    server.stop()


def test_beat_lives_while_it_sends_and_without_a_worker_the_queue_stays_short(
    server, entries, alarms, monkeypatch, tmp_path
):
    heartbeat = tmp_path / "heartbeat"
    monkeypatch.setenv("SLUICE_HEARTBEAT", str(heartbeat))
    scheduler = beat.Service(app, scheduler_cls=app.Beat(quiet=True).scheduler_cls).scheduler
    assert type(scheduler) is beat.Scheduler
    entry = scheduler.schedule["gateway.mail"]
    lengths = []
    for _ in range(2 * celery.MOST_WAITING):
        scheduler.apply_entry(entry, producer=scheduler.producer)
        lengths.append(int(server.ask("LLEN", f"sluice:celery:{QUEUE}").lstrip(":")))
    scheduler.close()
    assert max(lengths) == celery.MOST_WAITING
    assert alarms == [celery.SILENCE_S] * len(lengths)
    assert heartbeat.exists()


def connection_to(address):
    """What kombu would connect with."""
    connection = Connection(address)
    transport = connection.create_transport()
    channel = object.__new__(transport.Channel)
    channel.connection = transport
    return channel._connparams()


@pytest.mark.parametrize(
    "address",
    [
        "redis://h",
        "redis://:pw@h:6380/3",
        "redis://u:p%40w@h:6380?db=4",
        "rediss://u:pw@h:6380/3",
        "unix:///run/redis.sock",
        "unix://u:pw@/run/redis.sock?db=2",
        "unix:///run/redis.sock?db=1&password=p%40%2Fw%25",
        "unix:///run/redis.sock?username=u%3A&password=pw",
        "unix://:first@/run/redis.sock?username=u&password=second",
        "redis://h:6380/3?username=u&password=p%40w",
        "redis://h/3?password=first&password=second&db=4&db=5",
        "rediss://h:6380?password=a%2Bb+c",
        "redis://h/1?socket_timeout=5&protocol=3",
    ],
)
def test_it_is_the_same_server_database_and_user(address):
    ours, found = parse_url(address), connection_to(broker_url(address))
    for name, least in (("host", None), ("path", None), ("db", 0), ("username", None), ("password", None)):
        assert found.get(name, least) == ours.get(name, least), name
    assert found.get("port", 6379) == ours.get("port", 6379)
    assert issubclass(found["connection_class"], UnixDomainSocketConnection) == address.startswith("unix")


@pytest.mark.parametrize("server", ["unix://{folder}/socket", "redis://127.0.0.1:{port}"])
def test_a_password_in_the_query_opens_the_server(guarded, server):
    """Celery was turned away at a socket, and couldn't even begin elsewhere."""
    address = server.format(folder=guarded.folder, port=guarded.port) + "?db=1&username=sluice&password=p%40w%2F%25"
    for pool in (ConnectionPool.from_url(address), ConnectionPool(**connection_to(broker_url(address)))):
        with Redis(connection_pool=pool) as client:
            assert client.dbsize() == 0
        pool.disconnect()


def test_a_certificate_is_checked():
    assert connection_to("rediss://h/0")["ssl_cert_reqs"] == ssl.CERT_NONE  # kombu's own default
    found = connection_to(broker_url("rediss://h/0?ssl_ca_certs=/etc/ca.pem"))
    assert found["ssl_ca_certs"] == "/etc/ca.pem"
    assert issubclass(found["connection_class"], SSLConnection)
    assert found["ssl_cert_reqs"] == ssl.CERT_REQUIRED
