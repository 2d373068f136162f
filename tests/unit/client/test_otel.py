"""Spans and metrics of OpenTelemetry: which there are, how they are linked, and what travels in messages."""

import asyncio
import subprocess
import sys
import threading

import pytest
from consuming import push
from fake_cluster import FakeCluster, answer
from opentelemetry import baggage, trace
from opentelemetry import context as current
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, TraceState

from sprocketmq import Batching, Message, Producer, PullConsumer, sync
from sprocketmq.client import instance as instance_module
from sprocketmq.client.consume import pull_loop
from sprocketmq.client.send import requests as requests_module
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import BrokerError, InvalidMessage
from sprocketmq.otel import OpenTelemetryHooks, context_of, links_to
from sprocketmq.protocol.codes import RequestCode as Q
from sprocketmq.protocol.codes import ResponseCode as R
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.testing import eventually

QUEUE = MessageQueue("t", "broker-a", 0)
LATE = Batching(max_delay_ms=30_000)
# As Apache's Java agent writes them: a message of a Java producer that was traced.
JAVA_TRACE, JAVA_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FROM_JAVA = {"traceparent": f"00-{JAVA_TRACE}-{JAVA_SPAN}-01", "tracestate": "vendor=1"}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(requests_module, "RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(instance_module, "ASK_PAUSE_S", 0.001)
    monkeypatch.setattr(pull_loop, "PULL_PAUSE_S", 0.001)


class Telemetry:
    """An SDK that keeps all in memory."""

    def __init__(self, **options) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracer = self.provider.get_tracer("test")
        self.hooks = OpenTelemetryHooks(self.provider, self.meters)

    def spans(self, name: str = "") -> list:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def metrics(self) -> dict:
        data = self.reader.get_metrics_data()
        found = {}
        for metric in [m for r in (data.resource_metrics if data else ()) for s in r.scope_metrics for m in s.metrics]:
            found[metric.name] = metric
        return found


@pytest.fixture
def telemetry():
    made = Telemetry()
    yield made
    made.provider.shutdown()
    made.meters.shutdown()


async def stored(cluster: FakeCluster) -> list:
    async with PullConsumer("reader", namesrv=cluster.namesrv.address) as consumer:
        found = []
        for queue in await consumer.queues("t"):
            found += (await consumer.pull(queue, 0, max_messages=1000)).messages
        return found


def linked(span) -> set[int]:
    return {link.context.span_id for link in span.links}


# --- sending ------------------------------------------------------------------------------------------------------------


async def test_a_single_send_is_one_span_whose_context_travels_in_the_message(cluster, telemetry):
    message = Message("t", b"12345", "a", ["k1", "k2"], {"mine": "1"}, queue=QUEUE)
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
        with telemetry.tracer.start_as_current_span("request") as request:
            result = await producer.send(message)
    assert dict(message.properties) == {"mine": "1"}
    span, parent = telemetry.spans()
    assert (span.name, span.kind, span.parent.span_id) == ("send t", SpanKind.PRODUCER, request.get_span_context().span_id)
    assert parent.name == "request"
    host, _, port = cluster.broker.address.rpartition(":")
    attributes = dict(span.attributes)
    assert attributes.pop("messaging.client.id")
    assert attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": result.msg_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.message.tag": "a",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
        "messaging.rocketmq.message.type": "normal",
        "server.address": host,
        "server.port": int(port),
    }
    (received,) = await stored(cluster)
    traceparent, flags = received.properties["traceparent"].rsplit("-", 1)
    assert traceparent == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"
    assert int(flags, 16) & trace.TraceFlags.SAMPLED
    assert received.properties["mine"] == "1"


@pytest.mark.parametrize("gathered", [False, True])
async def test_a_batch_is_one_span_with_links_to_a_span_of_each_message(cluster, telemetry, gathered):
    async with Producer("pg", namesrv=cluster.namesrv.address, batching=LATE if gathered else None, hooks=[telemetry.hooks]) as producer:
        with telemetry.tracer.start_as_current_span("request") as request:
            messages = [Message("t", b"%d" % i) for i in range(3)]
            if gathered:
                futures = [producer.submit(message) for message in messages]
                await producer.flush()
                results = await asyncio.gather(*futures)
            else:
                results = await producer.send_batch(messages)
    created = telemetry.spans("create t")
    (sent,) = telemetry.spans("send t")
    assert [span.kind for span in created] == [SpanKind.PRODUCER] * 3
    assert {span.parent.span_id for span in created} == {request.get_span_context().span_id}
    assert [span.attributes["messaging.message.id"] for span in created] == [result.msg_id for result in results]
    assert sent.kind is SpanKind.CLIENT
    assert linked(sent) == {span.context.span_id for span in created}
    assert sent.attributes["messaging.batch.message_count"] == 3
    # A batch from many callers belongs to the trace of none of them.
    assert (sent.parent is None) == gathered
    carried = {message.properties["traceparent"].split("-")[2] for message in await stored(cluster)}
    assert carried == {f"{span.context.span_id:016x}" for span in created}


async def test_a_failed_send_has_its_error(cluster, telemetry):
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
        cluster.broker.script(Q.SEND_MESSAGE_V2, answer(R.MESSAGE_ILLEGAL, "no"))
        with pytest.raises(BrokerError):
            await producer.send(Message("t", b"x", deliver_at_ms=5))
        with pytest.raises(InvalidMessage):
            await producer.send(Message("t", b""))  # never sent: it has no span
    (span,) = telemetry.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "BrokerError"
    assert span.attributes["messaging.rocketmq.message.type"] == "delay"
    points = telemetry.metrics()["messaging.client.sent.messages"].data.data_points
    assert [(point.value, point.attributes["error.type"]) for point in points] == [(1, "BrokerError")]


async def test_a_request_that_the_program_encoded_is_a_span_without_links(cluster, telemetry):
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
        await producer.send_encoded("t", b"body", "UNIQ_KEY\x01abc\x02", batch=False)
    (span,) = telemetry.spans()
    assert (span.name, span.kind, len(span.links)) == ("send t", SpanKind.PRODUCER, 0)


# --- consuming ----------------------------------------------------------------------------------------------------------


async def test_receive_and_process_spans_link_to_the_spans_of_the_messages(cluster, telemetry):
    seen = []

    async def handler(batch):
        await asyncio.sleep(0)
        seen.append(trace.get_current_span().get_span_context().span_id)

    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
        await producer.send_batch([Message("t", b"%d" % i, queue=QUEUE) for i in range(3)])
    created = {span.context.span_id for span in telemetry.spans("create")}
    async with push(cluster, hooks=[telemetry.hooks]) as consumer:
        consumer.listen(handler)
        await eventually(lambda: telemetry.spans("process"))
    (received,), (processed,) = telemetry.spans("receive t"), telemetry.spans("process t")
    assert (received.kind, processed.kind) == (SpanKind.CLIENT, SpanKind.CONSUMER)
    assert linked(received) == linked(processed) == created
    assert received.parent is None
    assert processed.parent is None
    assert seen == [processed.context.span_id]
    for span in (received, processed):
        assert span.attributes["messaging.consumer.group.name"] == "cg"
        assert span.attributes["messaging.batch.message_count"] == 3
        assert span.attributes["messaging.destination.partition.id"] == "0"
    assert received.start_time <= received.end_time


async def test_processing_a_single_message_continues_the_trace_of_a_java_producer(cluster, telemetry):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x", properties=FROM_JAVA))
    seen = []
    async with push(cluster, hooks=[telemetry.hooks]) as consumer:
        consumer.listen(lambda batch: seen.append(trace.get_current_span().get_span_context()))
        await eventually(lambda: telemetry.spans("process"))
    (processed,) = telemetry.spans("process t")
    assert f"{processed.context.trace_id:032x}" == JAVA_TRACE
    assert f"{processed.parent.span_id:016x}" == JAVA_SPAN
    assert [link.context.trace_state.to_header() for link in processed.links] == ["vendor=1"]
    assert seen[0].span_id == processed.context.span_id


async def test_a_handler_that_sends_continues_the_trace(cluster, telemetry):
    cluster.namesrv.put("next", cluster.broker)
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
        await producer.send(Message("t", b"x", properties=FROM_JAVA))

        async def handler(batch):
            own = {name: value for name, value in batch[0].properties.items() if name in FROM_JAVA}
            await producer.send(Message("next", b"y", properties=own))

        async with push(cluster, hooks=[telemetry.hooks]) as consumer:
            consumer.listen(handler)
            await eventually(lambda: telemetry.spans("process"))
    first, last = telemetry.spans("send t")[0], telemetry.spans("send next")[0]
    (processed,) = telemetry.spans("process t")
    assert first.context.trace_id != int(JAVA_TRACE, 16)  # what was copied from a received message is replaced
    assert processed.parent.span_id == first.context.span_id
    assert last.parent.span_id == processed.context.span_id


async def test_a_handler_that_raises_and_a_give_back_are_errors_and_spans(cluster, telemetry):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x", properties=FROM_JAVA))

    def handler(batch):
        raise ValueError("no")

    async with push(cluster, hooks=[telemetry.hooks]) as consumer:
        consumer.listen(handler)
        await eventually(lambda: telemetry.spans("give_back"))
    processed, settled = telemetry.spans("process")[0], telemetry.spans("give_back t")[0]
    assert (processed.status.status_code, processed.attributes["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert (settled.kind, settled.attributes["messaging.operation.type"]) == (SpanKind.CLIENT, "settle")
    assert linked(settled) == {int(JAVA_SPAN, 16)}


async def test_a_loop_over_batches_has_process_spans_that_are_not_current(cluster, telemetry):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x", properties=FROM_JAVA))
    async with push(cluster, hooks=[telemetry.hooks]) as consumer:
        with telemetry.tracer.start_as_current_span("mine") as mine:
            async for batch in consumer.batches():
                assert trace.get_current_span() is mine
                assert [link.context.span_id for link in links_to(batch)] == [int(JAVA_SPAN, 16)]
                batch.ack()
                break
    (processed,) = telemetry.spans("process t")
    assert processed.parent.span_id == mine.get_span_context().span_id
    assert linked(processed) == {int(JAVA_SPAN, 16)}


async def test_links_of_one_span_are_bounded(cluster, telemetry):
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
        await producer.send_batch([Message("t", b"x") for _ in range(300)])
    (sent,) = telemetry.spans("send t")
    assert len(sent.links) == 128
    assert len(telemetry.spans("create t")) == 300


async def test_metrics_have_the_names_units_and_attributes_of_the_conventions(cluster, telemetry):
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
        await producer.send_batch([Message("t", b"x", queue=QUEUE)] * 3)
    async with push(cluster, hooks=[telemetry.hooks]) as consumer:
        consumer.listen(lambda batch: None)
        await eventually(lambda: telemetry.spans("process"))
    metrics = telemetry.metrics()
    assert {name: metric.unit for name, metric in metrics.items()} == {
        "messaging.client.operation.duration": "s",
        "messaging.process.duration": "s",
        "messaging.client.sent.messages": "{message}",
        "messaging.client.consumed.messages": "{message}",
    }
    host, _, port = cluster.broker.address.rpartition(":")
    base = {"messaging.system": "rocketmq", "messaging.destination.name": "t"}
    broker = {"server.address": host, "server.port": int(port)}
    group = {"messaging.consumer.group.name": "cg"}
    (sent,) = metrics["messaging.client.sent.messages"].data.data_points
    assert (sent.value, dict(sent.attributes)) == (3, base | broker | {"messaging.operation.name": "send"})
    (consumed,) = metrics["messaging.client.consumed.messages"].data.data_points
    assert (consumed.value, dict(consumed.attributes)) == (3, base | broker | group | {"messaging.operation.name": "receive"})
    (processed,) = metrics["messaging.process.duration"].data.data_points
    assert (processed.count, dict(processed.attributes)) == (1, base | group | {"messaging.operation.name": "process"})
    durations = metrics["messaging.client.operation.duration"].data.data_points
    assert {point.attributes["messaging.operation.name"] for point in durations} == {"send", "receive"}
    assert durations[0].explicit_bounds[0] == 0.005
    assert durations[0].explicit_bounds[-1] == 10.0


def test_blocking_producers_and_handlers_in_threads_share_the_context(telemetry):
    seen, done = [], threading.Event()
    with LocalCluster() as cluster:
        with (
            sync.Producer("pg", namesrv=cluster.namesrv, batching=LATE, hooks=[telemetry.hooks]) as producer,
            telemetry.tracer.start_as_current_span("request") as request,
        ):
            future = producer.submit(Message("t", b"x"))
            producer.flush()
            future.result()
            producer.send_batch([Message("other", b"1"), Message("other", b"2")])

        def handler(batch):
            seen.append(trace.get_current_span().get_span_context())
            done.set()

        with sync.PushConsumer("cg", "t", namesrv=cluster.namesrv, consume_from="first", hooks=[telemetry.hooks]) as consumer:
            consumer.listen(handler)
            assert done.wait(60)
    (sent,), (processed,) = telemetry.spans("send t"), telemetry.spans("process t")
    assert {span.parent.span_id for span in (sent, *telemetry.spans("create other"), *telemetry.spans("send other"))} == {
        request.get_span_context().span_id
    }
    assert processed.parent.span_id == sent.context.span_id
    assert seen[0].span_id == processed.context.span_id


# --- bad input ----------------------------------------------------------------------------------------------------------


async def test_a_context_that_is_too_large_loses_its_tracestate_first_and_that_is_logged_once(cluster, telemetry, caplog):
    state = TraceState([(f"vendor{i}", "x" * 250) for i in range(30)])
    remote = trace.SpanContext(int(JAVA_TRACE, 16), int(JAVA_SPAN, 16), is_remote=True, trace_flags=trace.TraceFlags(1), trace_state=state)
    token = current.attach(trace.set_span_in_context(trace.NonRecordingSpan(remote)))
    large = {"mine": "x" * 24_000}
    try:
        async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
            await producer.send(Message("t", b"small", queue=QUEUE))
            await producer.send(Message("t", b"large", properties=large, queue=QUEUE))
            await producer.send(Message("t", b"full", properties={"mine": "x" * 32_000}, queue=QUEUE))
    finally:
        current.detach(token)
    small, large, full = await stored(cluster)
    assert small.properties["tracestate"].startswith("vendor0=")
    assert "tracestate" not in large.properties
    assert large.properties["traceparent"].startswith(f"00-{JAVA_TRACE}-")
    assert "traceparent" not in full.properties
    assert caplog.text.count("does not fit into a message") == 1
    assert "tracestate of the trace" in caplog.text
    assert len(telemetry.spans("send t")) == 3


async def test_baggage_travels_and_is_dropped_after_the_tracestate(cluster, telemetry):
    token = current.attach(baggage.set_baggage("user", "a" * 4000))
    try:
        async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
            await producer.send(Message("t", b"x", queue=QUEUE))
            await producer.send(Message("t", b"x", properties={"mine": "x" * 28_000}, queue=QUEUE))
    finally:
        current.detach(token)
    first, second = await stored(cluster)
    assert first.properties.get("baggage", "").startswith("user=")
    assert "baggage" not in second.properties
    assert "traceparent" in second.properties


@pytest.mark.parametrize(
    "traceparent",
    [
        "rubbish",
        "00-00000000000000000000000000000000-0000000000000000-01",
        f"00-{JAVA_TRACE}-{JAVA_SPAN}",
        f"ff-{JAVA_TRACE}-{JAVA_SPAN}-01",
        "00-" + "f" * 20_000,
        "\U0001f600",
    ],
)
async def test_a_traceparent_of_a_stranger_that_cannot_be_read_counts_as_none(cluster, telemetry, traceparent):
    async with Producer("pg", namesrv=cluster.namesrv.address) as producer:
        await producer.send(Message("t", b"x", properties={"traceparent": traceparent, "tracestate": "=,=,", "baggage": "%%%"}))
    async with push(cluster, hooks=[telemetry.hooks]) as consumer:
        consumer.listen(lambda batch: None)
        await eventually(lambda: telemetry.spans("process"))
        assert consumer.stats().hook_failures == 0
    for span in telemetry.spans():
        assert not span.links
        assert span.parent is None


async def test_properties_that_are_no_text_count_as_no_context():
    class Damaged:
        @property
        def properties(self):
            raise BrokerError(0, "damaged")

    assert not context_of(Damaged())
    assert links_to([Damaged(), Message("t", b"x", properties=FROM_JAVA)])[0].context.span_id == int(JAVA_SPAN, 16)


async def test_without_an_sdk_messages_stay_as_they_are(cluster):
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[OpenTelemetryHooks(trace.NoOpTracerProvider())]) as producer:
        await producer.send(Message("t", b"x"))
        assert producer.stats().hook_failures == 0
    (message,) = await stored(cluster)
    assert "traceparent" not in message.properties


async def test_a_message_that_is_not_sampled_carries_its_context(cluster):
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
        await producer.send(Message("t", b"x"))
    (message,) = await stored(cluster)
    assert not int(message.properties["traceparent"].rsplit("-", 1)[1], 16) & trace.TraceFlags.SAMPLED
    assert not telemetry.spans()
    telemetry.provider.shutdown()
    telemetry.meters.shutdown()


async def test_older_attributes_stand_beside_those_of_today_when_asked_for(cluster, monkeypatch):
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http, messaging/dup")
    telemetry = Telemetry()
    async with Producer("pg", namesrv=cluster.namesrv.address, hooks=[telemetry.hooks]) as producer:
        await producer.send(Message("t", b"x"))
    async with push(cluster, hooks=[telemetry.hooks]) as consumer:
        consumer.listen(lambda batch: None)
        await eventually(lambda: telemetry.spans("process"))
    (sent,), (processed,) = telemetry.spans("send"), telemetry.spans("process")
    assert sent.attributes["messaging.operation"] == "publish"
    assert sent.attributes["messaging.operation.name"] == "send"
    assert processed.attributes["messaging.operation"] == "process"
    assert processed.attributes["messaging.rocketmq.client_group"] == "cg"
    assert processed.attributes["messaging.client_id"] == processed.attributes["messaging.client.id"]
    telemetry.provider.shutdown()
    telemetry.meters.shutdown()


def test_without_the_extra_one_sentence_says_what_to_install():
    program = "import sys; sys.modules['opentelemetry'] = None\ntry:\n    import sprocketmq.otel\nexcept ImportError as e:\n    print(e)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "OpenTelemetry, which sprocketmq.otel needs, is not installed: pip install opentelemetry-api"


def test_the_clients_do_not_import_opentelemetry():
    program = "from sprocketmq import *; import sys; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"
