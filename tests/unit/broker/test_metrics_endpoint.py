"""The address that Prometheus scrapes: what scrapers may do, and what they may not."""

import asyncio
import contextlib
import socket

import pytest
from asking import Asking
from tests.scraping import ask_http, scrape

from sprocketmq.broker.scraping import endpoint as endpoints
from sprocketmq.broker.scraping.endpoint import MetricsEndpoint
from sprocketmq.net.address import parse_address
from sprocketmq.testing import eventually

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n"


@pytest.fixture
async def serve():
    started = []

    async def start(page):
        endpoint = MetricsEndpoint(page, name="broker test")
        started.append(endpoint)
        await endpoint.start("127.0.0.1", 0)
        return endpoint

    yield start
    for endpoint in started:
        await endpoint.stop()


async def small():
    yield "# TYPE m gauge\n"
    yield "m 1\n"


async def endless():
    while True:
        yield "m 1\n" * 10_000
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("request_line", "status", "text"),
    [
        (b"GET /metrics HTTP/1.1", 200, "# TYPE m gauge\nm 1\n"),
        (b"GET /metrics?x=1 HTTP/1.1", 200, "# TYPE m gauge\nm 1\n"),
        (b"GET /metrics HTTP/1.0", 200, "# TYPE m gauge\nm 1\n"),
        (b"GET / HTTP/1.1", 404, "there is only /metrics here\n"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1", 404, "there is only /metrics here\n"),
        (b"POST /metrics HTTP/1.1", 405, "only GET is answered here, not 'POST'\n"),
        (
            b"GET /metrics",
            400,
            "this is the metrics port, which answers `GET /metrics` over HTTP/1.1: it is not a port for RocketMQ clients\n",
        ),
        (
            b"\x16\x03\x01\xff",
            400,
            "this is the metrics port, which answers `GET /metrics` over HTTP/1.1: it is not a port for RocketMQ clients\n",
        ),
    ],
)
async def test_a_request_gets_the_page_or_one_sentence(serve, request_line, status, text):
    endpoint = await serve(small)
    assert await ask_http(endpoint.address, request_line + b"\r\nHost: broker\r\n\r\n") == (status, text)
    await eventually(lambda: not endpoint.connections)


async def test_a_request_that_comes_in_pieces_is_answered(serve):
    endpoint = await serve(small)
    reader, writer = await asyncio.open_connection(*parse_address(endpoint.address))
    for piece in (b"GET /met", b"rics HTTP/1.1\r\nHost", b": x\r\n\r", b"\n"):
        writer.write(piece)
        await writer.drain()
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


async def test_a_request_without_end_is_refused(serve):
    endpoint = await serve(small)
    status, text = await ask_http(endpoint.address, b"GET /metrics HTTP/1.1\r\n" + b"a" * 9000)
    assert (status, "more than 8192 bytes" in text) == (431, True)


async def test_a_slow_request_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr(endpoints, "REQUEST_S", 0.05)
    endpoint = await serve(small)
    reader, writer = await asyncio.open_connection(*parse_address(endpoint.address))
    writer.write(b"GET /metrics HTTP/1.1\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(-1), 60) == b""
    writer.close()
    await eventually(lambda: not endpoint.connections)


async def test_a_scraper_that_never_reads_is_cut_off(serve, monkeypatch, caplog):
    monkeypatch.setattr(endpoints, "STALL_S", 0.05)
    endpoint = await serve(endless)
    with socket.create_connection(parse_address(endpoint.address)) as deaf:
        await asyncio.get_running_loop().run_in_executor(None, deaf.sendall, SCRAPE)
        await eventually(lambda: "scrape_cut_off" in caplog.text)
        await eventually(lambda: not endpoint.connections)


async def test_a_page_that_is_read_too_slowly_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr(endpoints, "PAGE_S", 0.2)
    endpoint = await serve(endless)
    reader, writer = await asyncio.open_connection(*parse_address(endpoint.address))
    writer.write(SCRAPE)
    with contextlib.suppress(ConnectionResetError):
        while await asyncio.wait_for(reader.read(65536), 60):
            pass
    writer.close()
    await eventually(lambda: not endpoint.connections)


async def test_a_thousand_connections_leave_room_for_nobody_else_and_end_by_themselves(serve, monkeypatch):
    monkeypatch.setattr(endpoints, "REQUEST_S", 1.0)
    endpoint = await serve(small)
    idle = [await asyncio.open_connection(*parse_address(endpoint.address)) for _ in range(endpoints.MAX_CONNECTIONS)]
    await eventually(lambda: len(endpoint.connections) == endpoints.MAX_CONNECTIONS)
    more = [await asyncio.open_connection(*parse_address(endpoint.address)) for _ in range(1000 - len(idle))]
    answers = await asyncio.gather(*(reader.read(-1) for reader, _ in more), return_exceptions=True)
    assert endpoint.refused > 0
    assert any(isinstance(answer, bytes) and b"16 scrapers are connected, the limit" in answer for answer in answers)
    assert len(endpoint.connections) <= endpoints.MAX_CONNECTIONS
    await eventually(lambda: not endpoint.connections)
    assert (await ask_http(endpoint.address, SCRAPE))[0] == 200
    for _, writer in idle + more:
        writer.close()


async def test_a_scraper_that_goes_while_the_page_is_made_is_no_failure(serve, caplog):
    gone = asyncio.Event()
    ended = asyncio.Event()

    async def page():
        try:
            yield "m 1\n"
            await gone.wait()
            yield "m 1\n"
        finally:
            ended.set()

    endpoint = await serve(page)
    reader, writer = await asyncio.open_connection(*parse_address(endpoint.address))
    writer.write(SCRAPE)
    await reader.readuntil(b"m 1\n")
    writer.transport.abort()
    await eventually(lambda: not endpoint.connections)
    gone.set()
    await eventually(ended.is_set)
    assert "metrics_failed" not in caplog.text


async def test_a_page_that_fails_is_no_page(serve, caplog):
    async def broken():
        raise RuntimeError("no page")
        yield ""

    async def half():
        yield "m 1\n"
        raise RuntimeError("no page")

    assert await ask_http((await serve(broken)).address, SCRAPE) == (500, "the page of metrics cannot be made: the broker's log says why\n")
    endpoint = await serve(half)
    reader, writer = await asyncio.open_connection(*parse_address(endpoint.address))
    writer.write(SCRAPE)
    with contextlib.suppress(ConnectionResetError):
        assert not (await reader.read(-1)).endswith(b"0\r\n\r\n")
    writer.close()
    assert caplog.text.count("metrics_failed") == 2


async def test_a_scrape_that_is_under_way_ends_with_the_broker(serve):
    endpoint = await serve(endless)
    reader, writer = await asyncio.open_connection(*parse_address(endpoint.address))
    writer.write(SCRAPE)
    assert await reader.read(100)
    await endpoint.stop()
    assert (endpoint.address, endpoint.connections) == ("", set())
    with contextlib.suppress(ConnectionResetError):
        while await asyncio.wait_for(reader.read(65536), 60):
            pass
    writer.close()


async def test_sends_go_on_between_the_pieces_of_a_large_page(start_broker):
    """A page of 2,000 topics takes many turns of the loop, and sends have theirs between."""
    broker = await start_broker(metrics_exporter="prom", metrics_port=0)
    for number in range(2000):
        broker.topics.create_internal(f"topic-{number}", 1)
        broker.counters.of_topic(broker.topics.get(f"topic-{number}")).of_type("normal").add(1, 100, [100], 0.0)
    asking = Asking(broker)
    await asking.open()
    scraping = asyncio.ensure_future(scrape(broker.metrics.address))
    sent = 0
    while not scraping.done():
        await asking.send("topic-1")
        sent += 1
    assert len((await scraping).values("rocketmq_messages_in_total", "topic")) == 2000
    assert sent > 5
    await asking.close()
