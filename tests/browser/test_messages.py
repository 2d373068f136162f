"""The pages Messages, Dead letters, Traces and Spark: every action, and what a hostile message tries."""

import json
import os
import re
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from sprocketmq import Message, sync
from sprocketmq.protocol.progress_reports import PROGRESS_TOPIC, ProgressReport, QueuePlace, TopicProgress
from sprocketmq.protocol.traces import PubTrace, SubAfterTrace, SubBeforeTrace
from sprocketmq.testing import wait_until
from sprocketmq.web.target import ClusterTarget

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title="pwned"</script>'
GROUP = "billing"
TRACED = "7F00000100002A9F0000000000000001"


@pytest.fixture(scope="module")
def admin(cluster):
    with sync.AdminClient(namesrv=cluster.namesrv) as client:
        client.create_topic("orders", queues=2)
        client.create_topic("bulk", queues=1, attributes={"queue.type": "BatchCQ"})
        client.create_topic("traced", queues=1)
        client.create_topic(PROGRESS_TOPIC, queues=1)
        yield client


@pytest.fixture(scope="module")
def producer(cluster, admin):
    with sync.Producer("browser-tests", namesrv=cluster.namesrv) as client:
        yield client


@pytest.fixture(scope="module")
def hostile(producer):
    """Where a message is whose body, property and tag are HTML."""
    return producer.send(Message("orders", HOSTILE.encode(), tag="<b>tag</b>", keys=["<i>key</i>"], properties={"<u>name</u>": HOSTILE}))


def address(dashboard, result, **more):
    where = {"topic": result.topic, "broker": result.broker_name, "queue": result.queue_id, "offset": result.queue_offset, "show": 1}
    return f"{dashboard}/messages?{urlencode(where | more)}"


def bury(cluster, admin, *bodies):
    """Send messages to a topic of their own whose group makes them dead letters, and return the name of the topic."""
    topic = f"buried-{os.urandom(4).hex()}"
    admin.create_topic(topic, queues=1)
    admin.create_group(GROUP)
    before = letters(admin)

    def refuse(batch):
        for message in batch:
            batch.retry(message, delay_level=-1)

    with (
        sync.Producer("browser-tests", namesrv=cluster.namesrv) as producer,
        sync.PushConsumer(GROUP, [topic], namesrv=cluster.namesrv, consume_from="first") as consumer,
    ):
        consumer.listen(refuse)
        for body in bodies:
            producer.send(Message(topic, body))
        wait_until(lambda: letters(admin) == before + len(bodies))
    return topic


def letters(admin):
    topic = f"%DLQ%{GROUP}"
    return len(admin.search(topic, max_count=1000).messages) if topic in admin.topics() else 0


# --- messages ---


def test_messages_are_searched_and_one_is_opened(page, dashboard, producer):
    producer.send(Message("orders", b'{"big": 12345678901234567890}', tag="new", keys=["k-1"]))
    page.goto(f"{dashboard}/messages")
    page.get_by_label("Topic").fill("orders")
    page.get_by_role("button", name="Search").click()
    row = page.get_by_role("row", name=re.compile("k-1"))
    expect(row).to_be_visible()
    page.get_by_label("Search by").select_option("key")
    page.get_by_label("Key", exact=True).fill("k-1")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    row.click()
    expect(page.locator(".viewer pre")).to_contain_text('"big": 12345678901234567890')
    page.get_by_role("tab", name="Hex").click()
    expect(page.locator(".viewer pre")).to_contain_text("7b 22 62 69 67")
    page.get_by_role("link", name="Trace", exact=True).click()
    expect(page.get_by_role("heading", name="Traces")).to_be_visible()


def test_a_result_that_is_cut_says_so(page, dashboard, producer):
    producer.send_batch([Message("orders", b"%d" % n) for n in range(40)])
    page.goto(f"{dashboard}/messages?topic=orders&count=32&range=1h")
    expect(page.locator(".notice.warn")).to_contain_text("The newest 32 are shown")


def test_nothing_in_a_message_becomes_html(page, dashboard, hostile):
    page.goto(f"{dashboard}/messages?topic=orders&range=1h&by=key&text=%3Ci%3Ekey%3C/i%3E")
    expect(page.get_by_role("row", name=re.compile("img src=x"))).to_be_visible()
    page.goto(address(dashboard, hostile))
    expect(page.locator(".viewer pre")).to_have_text(HOSTILE)
    expect(page.get_by_text("<u>name</u>")).to_be_visible()
    assert page.locator("main img, main script, main u, main i").count() == 0
    assert page.title() == "Messages · SprocketMQ"


def test_a_large_body_is_shown_in_part_and_downloaded_whole(page, dashboard, producer):
    body = os.urandom(4_000_000)
    page.goto(address(dashboard, producer.send(Message("orders", body))))
    expect(page.get_by_text("The first 64.0 KiB of 3.8 MiB")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name=re.compile("Download")).click()
    with open(download.value.path(), "rb") as file:
        assert file.read() == body


def test_a_batch_is_drawn_and_leads_to_its_messages(page, dashboard, producer):
    sent = producer.send_batch([Message("bulk", b"body %d" % n) for n in range(10)])
    page.goto(address(dashboard, sent[3]))
    expect(page.get_by_role("heading", name="Message 4 of 10 in a batch")).to_be_visible()
    page.get_by_role("link", name=re.compile("^10 of 10")).click()
    expect(page.get_by_role("heading", name="Message 10 of 10 in a batch")).to_be_visible()
    expect(page.locator(".viewer pre")).to_have_text("body 9")


def test_a_test_message_is_sent(page, dashboard, admin):
    page.goto(f"{dashboard}/messages?topic=orders")
    page.get_by_role("button", name="Send a test message").click()
    box = page.get_by_role("dialog")
    box.get_by_label("Body", exact=True).fill("from the page")
    box.get_by_label("Tag").fill("t")
    box.get_by_label("Properties").fill("no pair")
    box.get_by_role("button", name="Send").click()
    expect(box.get_by_role("alert")).to_contain_text("no pair is no pair")
    box.get_by_label("Properties").fill("colour=blue")
    box.get_by_role("button", name="Send").click()
    expect(page.locator(".viewer pre")).to_have_text("from the page")
    expect(page.get_by_text("blue")).to_be_visible()


def test_a_topic_is_followed_until_it_goes_away(page, dashboard, admin, producer):
    admin.create_topic("leaving", queues=1)
    groups = list(admin.groups())
    page.goto(f"{dashboard}/messages?topic=leaving&follow=1")
    expect(page.get_by_text("0 seen, 0/s")).to_be_visible()
    producer.send(Message("leaving", HOSTILE.encode()))
    expect(page.get_by_role("row", name=re.compile("img src=x"))).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    producer.send(Message("leaving", b"while it pauses"))
    expect(page.get_by_text(re.compile("^2 seen"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("while it pauses"))).to_have_count(0)
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("row", name=re.compile("while it pauses"))).to_be_visible()
    assert list(admin.groups()) == groups
    admin.delete_topic("leaving")
    expect(page.get_by_text("Topic leaving does not exist any more.")).to_be_visible()
    expect(page.get_by_text("Ended")).to_be_visible()


def test_a_topic_that_is_not_there_is_one_sentence(page, dashboard):
    page.goto(f"{dashboard}/messages?topic=nowhere")
    expect(page.get_by_role("alert")).to_contain_text("topic 'nowhere' has no route")
    page.problems.clear()  # the browser notes the status 404


# --- dead letters ---


def test_dead_letters_are_replayed_once_by_a_double_click(page, dashboard, cluster, admin):
    topic = bury(cluster, admin, b"first", b"second")
    page.goto(f"{dashboard}/dead-letters")
    page.get_by_role("link", name=GROUP).click()
    page.get_by_role("searchbox").fill("second")
    page.get_by_role("button", name="Choose all").click()
    page.get_by_role("button", name="Replay 1").click()
    box = page.get_by_role("dialog")
    expect(box.get_by_text("would be sent: 1")).to_be_visible()
    assert len(admin.search(topic).messages) == 2
    box.get_by_role("button", name="Replay", exact=True).dblclick()
    expect(page.get_by_role("dialog", name="Receipt")).to_contain_text("sent: 1")
    expect(page.get_by_role("dialog", name="Receipt")).to_contain_text("no offset moves")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as JSON").click()
    with open(download.value.path(), encoding="utf-8") as file:
        assert json.load(file)["entries"][0]["to"]["topic"] == topic
    assert sorted(message.body for message in admin.search(topic).messages) == [b"first", b"second", b"second"]


def test_a_dead_letter_is_compared_with_its_original(page, dashboard, cluster, admin):
    topic = bury(cluster, admin, b"compare me")
    offset = letters(admin) - 1
    page.goto(f"{dashboard}/dead-letters?group={GROUP}&broker=broker-a&queue=0&offset={offset}")
    expect(page.get_by_text("The body is that of the original.")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("RETRY_TOPIC"))).to_contain_text(topic)
    admin.delete_topic(topic)
    page.reload()
    expect(page.get_by_text(re.compile("The original message is not there any more"))).to_be_visible()


def test_a_read_only_dashboard_has_no_buttons_that_change(page, dashboards, cluster, admin):
    bury(cluster, admin, b"only to look at")
    dashboard = dashboards(ClusterTarget(cluster.namesrv), read_only=True)
    page.goto(f"{dashboard}/dead-letters?group={GROUP}")
    expect(page.get_by_role("row", name=re.compile("only to look at"))).to_be_visible()
    assert page.get_by_role("button", name=re.compile("Replay|Choose")).count() == 0
    page.goto(f"{dashboard}/messages?topic=orders")
    expect(page.get_by_role("button", name="Follow")).to_be_visible()
    assert page.get_by_role("button", name="Send a test message").count() == 0


# --- traces and queries ---


def test_the_life_of_a_message_is_a_time_line(page, dashboard, producer):
    records = [
        PubTrace(1_700_000_000_000, "", "shop", "orders", TRACED, HOSTILE, "k", "127.0.0.1:10911", 12, 7, 0, "id", True),
        SubBeforeTrace(1_700_000_000_040, "", "billing", "r1", TRACED, 0, "k"),
        SubAfterTrace("r1", TRACED, 60, False, "k", 2, 1_700_000_000_100, "billing"),
    ]
    producer.send(Message("traced", "".join(record.encode() for record in records).encode(), keys=[TRACED]))
    page.goto(f"{dashboard}/traces")
    page.get_by_label("Message id").fill(TRACED)
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("There is no trace topic")).to_be_visible()
    page.get_by_label("Trace topic").fill("traced")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("ol.trace > li")).to_have_count(2)
    expect(page.get_by_text("EXCEPTION")).to_be_visible()
    page.get_by_text("Details").first.click()
    expect(page.get_by_text(HOSTILE)).to_be_visible()


def test_queries_that_report_are_shown_with_their_lag(page, dashboard, producer):
    page.goto(f"{dashboard}/spark")
    expect(page.get_by_text("No query has reported")).to_be_visible()
    expect(page.locator(".live")).to_have_text("Live")
    slowest = [QueuePlace("orders", "broker-a", 1, 10, 60)]
    report = ProgressReport(HOSTILE, "r", "driver", 0, 0, 3, 4000, 1234, 2, [TopicProgress("orders", 2, 10, 60)], slowest)
    producer.send(Message(PROGRESS_TOPIC, report.encode()))
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.get_by_text("1,234")).to_be_visible()
    page.get_by_text("Queues farthest behind").click()
    expect(page.get_by_role("row", name=re.compile("broker-a · 1"))).to_be_visible()
