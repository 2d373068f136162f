"""The page Store in a browser: what our broker tells, what another one does not, and a broker that is away."""

import re

from playwright.sync_api import expect

from sprocketmq import Message, sync


def test_a_store_is_shown_with_segments_and_index(page, dashboard, cluster):
    with sync.Producer("pg", namesrv=cluster.namesrv) as producer:
        producer.send(Message("kept", b"x" * 1000, keys=["k"]))
    page.goto(f"{dashboard}/store")
    expect(page.get_by_role("heading", name=re.compile("broker-a"))).to_be_visible()
    expect(page.get_by_role("table", name="Segments")).to_contain_text("in use")
    expect(page.get_by_text("segments: 1")).to_be_visible()
    expect(page.get_by_text("kept for")).to_be_visible()
    expect(page.locator(".live")).to_have_text("Live")


def test_segments_tell_when_they_expire(page, dashboard):
    def answer(route):
        told = route.fetch().json()
        now, hour = told["now_ms"], 3_600_000
        told["stores"][0].update(
            segment_count=70,
            segments=[
                {"start": 0, "bytes": 1 << 30, "written_ms": now - 80 * hour, "expires_ms": now - 8 * hour},
                {"start": 1 << 30, "bytes": 1 << 30, "written_ms": now - 70 * hour, "expires_ms": now + 2 * hour},
            ],
        )
        route.fulfill(json=told)

    page.route("**/api/stores", answer)
    page.goto(f"{dashboard}/store")
    segments = page.get_by_role("table", name="Segments")
    expect(segments.get_by_role("row", name=re.compile(r"^0 1\.0 GiB.*due"))).to_be_visible()
    expect(segments.get_by_role("row", name=re.compile("in 2 h"))).to_be_visible()
    expect(page.get_by_text("68 newer segments are not shown")).to_be_visible()


def test_what_an_apache_broker_does_not_tell_is_unknown_and_has_a_reason(page, dashboard):
    def answer(route):
        told = route.fetch().json()
        told["stores"][0].update(
            own=False, segments=None, queue_count=None, batch_topic_count=None, index_entries=None, index_room=None, index_enabled=None
        )
        route.fulfill(json=told)

    page.route("**/api/stores", answer)
    page.goto(f"{dashboard}/store")
    expect(page.get_by_text("This is not a SprocketMQ broker")).to_be_visible()
    expect(page.locator(".unknown").first).to_have_attribute("title", re.compile("does not report it"))
    expect(page.get_by_text("When each segment expires is unknown")).to_be_visible()


def test_hostile_texts_of_a_broker_are_text(page, dashboard):
    hostile = "<img src=x onerror=alert(1)>"

    def answer(route):
        told = route.fetch().json()
        told["stores"][0].update(broker=hostile, address=hostile, delete_when=hostile, flush_behind=hostile, index_failure=hostile)
        told["stores"].append({"broker": hostile, "id": 1, "address": hostile, "problem": hostile})
        route.fulfill(json=told)

    page.route("**/api/stores", answer)
    page.on("dialog", lambda dialog: page.problems.append(dialog.message))
    page.goto(f"{dashboard}/store")
    expect(page.get_by_role("heading", name=hostile)).to_have_count(2)
    expect(page.get_by_role("alert").last).to_contain_text(hostile)
    expect(page.locator("main img")).to_have_count(0)
