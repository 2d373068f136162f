"""What a request passes before a page's function runs, and what becomes of errors."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
from tests import ports

from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import TopicNotFound
from sprocketmq.web.app import create_app
from sprocketmq.web.calls import MAX_BODY_BYTES, Call, Route, Stream
from sprocketmq.web.pages import Page
from sprocketmq.web.target import ClusterTarget

CHANGED = []


async def change(call: Call) -> object:
    CHANGED.append(call.text("topic"))
    return {}


async def queues(call: Call) -> object:
    return len(await (await call.admin()).queues(call.text("topic")))


async def arguments(call: Call) -> object:
    return [call.number("n", 7, least=1, most=10), call.flag("f"), call.choice("c", ("a", "b"), "a"), call.text("t", "")]


async def fail(_: Call) -> object:
    raise KeyError("a secret of the inside")


async def hang(_: Call) -> object:
    await asyncio.Event().wait()


async def events(call: Call):
    for i in range(call.number("n")):
        yield "tick", i
    raise TopicNotFound("gone")


PAGE = Page(
    "test",
    "/",
    (
        Route("POST", "/api/test/change", change),
        Route("POST", "/api/test/delete", change, confirm="topic"),
        Route("POST", "/api/test/look", arguments, changes=False),
        Route("GET", "/api/test/queues", queues),
        Route("GET", "/api/test/arguments", arguments),
        Route("GET", "/api/test/fail", fail),
        Route("GET", "/api/test/hang", hang, timeout_s=0.05),
    ),
    (Stream("/api/test/events", events),),
)


@asynccontextmanager
async def visiting(namesrv: str, **options):
    app = create_app(ClusterTarget(namesrv), pages=(PAGE,), **options)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
            yield http


@pytest.fixture
async def http(cluster):
    async with visiting(cluster.namesrv) as http:
        yield http


@pytest.fixture
async def headers(http):
    return {"X-CSRF-Token": (await http.get("/api/session")).json()["csrf"]}


@pytest.fixture(autouse=True)
def changed():
    CHANGED.clear()
    return CHANGED


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["kind"]


async def test_a_change_needs_the_token(http, headers, changed):
    assert error(await http.post("/api/test/change", json={"topic": "t"})) == (403, "NoToken")
    assert error(await http.post("/api/test/change", json={"topic": "t"}, headers={"X-CSRF-Token": "x"})) == (403, "NoToken")
    assert changed == []
    assert (await http.post("/api/test/change", json={"topic": "t"}, headers=headers)).json() == {}
    assert changed == ["t"]


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:9999", "null", "http://localhost:8080"])
async def test_another_origin_is_refused(http, headers, changed, origin):
    for path in ("/api/test/change", "/api/login", "/api/logout"):
        assert error(await http.post(path, json={"topic": "t"}, headers={**headers, "Origin": origin})) == (403, "OtherOrigin")
    assert error(await http.get("/api/session", headers={"Origin": origin})) == (403, "OtherOrigin")
    assert changed == []


async def test_the_own_origin_is_not(http, headers):
    answer = await http.post("/api/test/change", json={"topic": "t"}, headers={**headers, "Origin": "http://127.0.0.1:8080"})
    assert answer.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_pages_of_other_sites_start_nothing(http, site):
    assert error(await http.get("/api/test/arguments", headers={"Sec-Fetch-Site": site})) == (403, "OtherOrigin")
    assert (await http.get("/", headers={"Sec-Fetch-Site": site})).status_code == 200  # a link


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("10.1.2.3", 200),
        ("localhost:1", 200),
        ("Dash.Example.:8080", 200),
        ("evil.example:8080", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("a b", 421),
    ],
)
async def test_only_known_names_are_answered(cluster, host, status):
    async with visiting(cluster.namesrv, allowed_hosts=["dash.example"]) as http:
        for path in ("/", "/api/session", "/static/style.css"):
            assert (await http.get(path, headers={"Host": host})).status_code == status


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\app.py",
        "/static/",
        "/static/i18n",
        "/static/nothing.js",
        "/static/shell.html",
        "/static/%00",
    ],
)
async def test_no_path_climbs(cluster, visit, path):
    visitor = await visit(ClusterTarget(cluster.namesrv))
    reader, writer = await asyncio.open_connection("127.0.0.1", visitor.http.base_url.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())  # httpx would tidy the path up
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    assert b" 404 " in answer.partition(b"\r\n")[0]
    assert b"there is no such" in answer


async def test_a_body_of_4_mib_is_refused(http, headers, changed):
    body = b'{"topic": "' + b"x" * (4 << 20) + b'"}'
    answer = await http.post("/api/test/change", content=body, headers={**headers, "Content-Type": "application/json"})
    assert error(answer) == (413, "TooLarge")
    assert str(MAX_BODY_BYTES) in answer.text
    answer = await http.post("/api/login", content=body, headers={"Content-Type": "application/json"})
    assert error(answer) == (413, "TooLarge")
    assert changed == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"text"', b"\xff", b"[" * 100_000, b'{"a":' * 50_000])
async def test_what_is_no_json_object_is_refused(http, headers, body):
    answer = await http.post("/api/test/change", content=body, headers={**headers, "Content-Type": "application/json"})
    assert answer.status_code in (400, 413)


async def test_a_form_of_another_page_is_refused(http, headers):
    answer = await http.post("/api/test/change", data={"topic": "t"}, headers=headers)
    assert error(answer) == (415, "NotJson")


async def test_an_unknown_topic_is_a_sentence(http):
    answer = await http.get("/api/test/queues", params={"topic": "nothing-here"})
    assert error(answer) == (404, "TopicNotFound")
    assert "nothing-here" in answer.json()["error"]["text"]
    assert error(await http.get("/api/test/queues", params={"topic": "a b"})) == (400, "InvalidName")
    assert error(await http.get("/api/test/queues")) == (400, "ConfigError")


@pytest.mark.parametrize("query", [{"n": "0"}, {"n": "11"}, {"n": "x"}, {"n": "9" * 5000}, {"f": "maybe"}, {"c": "c"}, {"t": "x" * 5000}])
async def test_arguments_are_checked(http, query):
    assert error(await http.get("/api/test/arguments", params=query)) == (400, "ConfigError")


async def test_arguments_come_from_query_and_body(http, headers):
    assert (await http.get("/api/test/arguments", params={"n": "3", "f": "1", "c": "b", "t": "x"})).json() == [3, True, "b", "x"]
    body = {"n": 3, "f": True, "c": "b", "t": "x"}
    assert (await http.post("/api/test/look", json=body, headers=headers)).json() == [3, True, "b", "x"]
    assert (await http.get("/api/test/arguments")).json() == [7, False, "a", ""]


async def test_what_destroys_is_confirmed_by_typing(http, headers, changed):
    for confirm in ({}, {"confirm": ""}, {"confirm": "T"}):
        assert error(await http.post("/api/test/delete", json={"topic": "t", **confirm}, headers=headers)) == (409, "NotConfirmed")
    assert changed == []
    assert (await http.post("/api/test/delete", json={"topic": "t", "confirm": "t"}, headers=headers)).status_code == 200


async def test_a_read_only_dashboard_changes_nothing(cluster, changed):
    async with visiting(cluster.namesrv, read_only=True) as http:
        session = (await http.get("/api/session")).json()
        assert session["read_only"] is True
        headers = {"X-CSRF-Token": session["csrf"]}
        assert error(await http.post("/api/test/change", json={"topic": "t"}, headers=headers)) == (403, "ReadOnly")
        assert (await http.post("/api/test/look", json={}, headers=headers)).status_code == 200
    assert changed == []


async def test_a_failure_of_the_dashboard_tells_nothing_of_the_inside(http, caplog):
    answer = await http.get("/api/test/fail")
    assert error(answer) == (500, "InternalError")
    assert "secret" not in answer.text
    assert "a secret of the inside" in caplog.text


async def test_a_call_that_takes_too_long_ends(http):
    assert error(await http.get("/api/test/hang")) == (504, "Timeout")


async def test_the_last_event_of_a_stream_is_its_error(http):
    lines = (await http.get("/api/test/events", params={"n": 2})).text.split("\n\n")
    assert lines[1:3] == ["event: tick\ndata: 0", "event: tick\ndata: 1"]
    assert lines[3].startswith('event: failure\ndata: {"kind":"TopicNotFound"')


async def test_every_answer_has_the_headers_that_protect_it(http):
    for path in ("/", "/api/session", "/static/style.css", "/nothing", "/api/test/fail"):
        headers = (await http.get(path)).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] in ("no-store", "no-cache")


async def test_a_cluster_that_is_away_is_a_sentence_and_comes_back(visit):
    with ports.hold() as held:
        address = ports.address_of(held)
        visitor = await visit(ClusterTarget(address))
        async with asyncio.timeout(60):
            view = (await visitor.get("/api/overview")).json()["cluster"]
        assert "no nameserver answered" in view["problem"]
        assert [alarm["kind"] for alarm in view["alarms"]] == ["nameserver"]
        with LocalCluster(namesrv_port=held.getsockname()[1]):
            async with asyncio.timeout(60), visitor.events("/api/live") as events:
                async for _, view in events:
                    if view["brokers"]:
                        break
        assert view["problem"] == ""


async def test_a_broker_dies_while_a_page_is_open(visit):
    with LocalCluster(brokers=2) as cluster:
        visitor = await visit(ClusterTarget(cluster.namesrv))
        await visitor.get("/api/overview")
        await asyncio.to_thread(cluster.kill_broker, "broker-b")
        async with asyncio.timeout(60), visitor.events("/api/live") as events:
            async for _, view in events:
                problems = {broker["name"]: broker["problem"] for broker in view["brokers"]}
                if problems["broker-b"]:
                    break
        assert problems["broker-a"] == ""
        assert {alarm["kind"] for alarm in view["alarms"]} & {"away", "no_master"}
