"""Logins over a secured cluster: who gets in, what the session may do, and how it ends."""

import asyncio

import pytest

from sprocketmq.client.credentials import read_credentials
from sprocketmq.clock import ManualClock
from sprocketmq.web.sessions import MAX_FAILURES_OF_KEY, MAX_SESSIONS, SESSION_S, UNUSED_S
from sprocketmq.web.target import ClusterTarget


@pytest.fixture
def admin(secured_cluster):
    return read_credentials(secured_cluster.secure / "credentials.json")


@pytest.fixture
def target(secured_cluster):
    return ClusterTarget(secured_cluster.namesrv, secure=secured_cluster.secure)


async def test_without_a_login_nothing_is_told(visit, target):
    visitor = await visit(target)
    session = await visitor.hello()
    assert session == {"login": True, "user": None, "csrf": None, "read_only": False, "namesrv": ""}
    for path in ("/api/overview", "/api/live"):
        answer = await visitor.get(path)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (401, "LoginNeeded")


async def test_a_login_is_checked_by_the_cluster(visit, target, admin):
    visitor = await visit(target)
    refused = await visitor.login(admin.access_key, "wrong")
    assert (refused.status_code, refused.json()["error"]["kind"]) == (401, "WrongLogin")
    refused = await visitor.login("nobody", admin.secret_key.reveal())
    assert refused.status_code == 401
    accepted = await visitor.login(admin.access_key, admin.secret_key.reveal())
    assert accepted.status_code == 200
    assert (await visitor.hello())["user"] == admin.access_key
    assert (await visitor.get("/api/overview")).status_code == 200


async def test_the_cookie_is_for_the_same_site_and_no_script(visit, target, admin):
    visitor = await visit(target)
    accepted = await visitor.login(admin.access_key, admin.secret_key.reveal())
    cookie = accepted.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert admin.secret_key.reveal() not in cookie + accepted.text


async def test_logging_out_ends_the_session_on_the_server(visit, target, admin):
    visitor = await visit(target)
    await visitor.login(admin.access_key, admin.secret_key.reveal())
    cookies = dict(visitor.http.cookies)
    assert (await visitor.post("/api/logout")).status_code == 200
    visitor.http.cookies.update(cookies)
    assert (await visitor.get("/api/overview")).status_code == 401


async def test_failed_logins_are_limited_for_each_key(visit, target, admin):
    clock = ManualClock()
    visitor = await visit(target, clock=clock)
    for _ in range(MAX_FAILURES_OF_KEY):
        assert (await visitor.login("nobody", "wrong")).status_code == 401
    refused = await visitor.login("nobody", "wrong")
    assert (refused.status_code, refused.json()["error"]["kind"]) == (429, "TooManyLogins")
    assert (await visitor.login(admin.access_key, admin.secret_key.reveal())).status_code == 200
    clock.advance(61)
    assert (await visitor.login("nobody", "wrong")).status_code == 401


@pytest.mark.parametrize(("wait_s", "steps"), [(UNUSED_S, 1), (SESSION_S / 12, 12)])
async def test_sessions_end(visit, target, admin, wait_s, steps):
    clock = ManualClock()
    visitor = await visit(target, clock=clock)
    await visitor.login(admin.access_key, admin.secret_key.reveal())
    answers = []
    for _ in range(steps):
        clock.advance(wait_s)
        answers.append((await visitor.hello())["user"])
    assert answers[-1] is None
    assert set(answers[:-1]) <= {admin.access_key}


async def test_the_number_of_sessions_is_bounded(visit, target, admin):
    visitor = await visit(target)
    sessions = visitor.server.dashboard.sessions
    logins = [await sessions.login(admin.access_key, admin.secret_key.reveal()) for _ in range(MAX_SESSIONS + 1)]
    assert [session.closed for session in logins[:2]] == [True, False]
    assert await sessions.find(logins[0].id) is None
    assert await sessions.find(logins[-1].id) is logins[-1]


async def test_a_user_without_rights_sees_no_statistics(visit, target, secured_cluster):
    user = read_credentials(secured_cluster.create_user("reader", {"Topic:orders": "Sub"}) / "credentials.json")
    visitor = await visit(target)
    assert (await visitor.login(user.access_key, user.secret_key.reveal())).status_code == 200
    answer = await visitor.get("/api/overview")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (403, "AuthorizationFailed")
    async with visitor.events("/api/live") as events:
        assert [name async for name, _ in events] == ["failure"]


async def test_without_credentials_of_its_own_the_dashboard_finds_out_that_a_login_is_needed(visit, secured_cluster, admin, monkeypatch):
    from sprocketmq.net.tls import TlsConfig

    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    visitor = await visit(ClusterTarget(secured_cluster.namesrv, tls=TlsConfig(ca_file=secured_cluster.secure / "ca.pem")))
    assert (await visitor.hello())["login"] is True
    await visitor.login(admin.access_key, admin.secret_key.reveal())
    async with asyncio.timeout(60), visitor.events("/api/live") as events:
        async for _, view in events:
            if view["brokers"] and not view["brokers"][0]["problem"]:
                break


async def test_a_login_at_a_cluster_without_access_control_proves_nothing(visit, cluster, admin):
    visitor = await visit(ClusterTarget(cluster.namesrv, credentials=admin))
    answer = await visitor.login("anybody", "anything")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (409, "NoAccessControl")
    assert (await visitor.hello())["user"] is None
