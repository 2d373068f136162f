"""Everything by keyboard: filters, rows, order, choices and dialogs, and a refresh that leaves the focus where it is."""

import re

import pytest
from playwright.sync_api import expect
from tests.browser.looks import settled

FILTERED = ("topics", "groups", "messages-found", "dead_letters", "dead_letters-group")
FOCUSED = "document.activeElement"


def tab_to(page, locator):
    """Press Tab until ``locator`` has the focus, as someone without a mouse does."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if locator.evaluate(f"element => element === {FOCUSED}"):
            return
    pytest.fail(f"{locator} is not reached by Tab")


@pytest.mark.parametrize("name", FILTERED)
def test_a_slash_leads_to_the_filter_and_a_row_is_opened(page, shown, name):
    page.goto(shown.address(name))
    settled(page)
    page.evaluate(f"{FOCUSED}.blur()")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("a/")
    expect(page.get_by_role("searchbox")).to_have_value("a/")
    page.get_by_role("searchbox").fill("")
    before = page.url
    row = page.locator("main tbody tr.openable").first
    tab_to(page, row.get_by_role("link").first)
    page.keyboard.press("Enter")
    expect(page.locator("main a.back")).to_be_visible()
    assert page.url != before
    settled(page)
    page.go_back()
    expect(page.get_by_role("searchbox")).to_be_visible()


def test_a_slash_in_a_field_is_a_slash(page, shown):
    page.goto(shown.address("messages-found"))
    settled(page)
    page.get_by_label("Contains the text").focus()
    page.keyboard.type("/")
    expect(page.get_by_label("Contains the text")).to_have_value("/")
    expect(page.get_by_label("Contains the text")).to_be_focused()


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_columns_are_sorted_and_keep_the_focus(page, shown, key):
    page.goto(shown.address("topics"))
    settled(page)
    head = page.get_by_role("columnheader", name="Queues")
    button = head.get_by_role("button")
    page.get_by_role("searchbox").focus()
    tab_to(page, button)
    for order in ("descending", "ascending"):
        page.keyboard.press(key)
        expect(head).to_have_attribute("aria-sort", order)
        expect(button).to_be_focused()


def test_dead_letters_are_chosen(page, shown):
    page.goto(shown.address("dead_letters-group"))
    settled(page)
    page.get_by_role("searchbox").focus()
    box = page.get_by_role("row").get_by_role("checkbox").first
    tab_to(page, box)
    page.keyboard.press("Space")
    expect(box).to_be_checked()
    expect(page.get_by_role("button", name="Replay 1")).to_be_enabled()


def test_the_views_of_a_body_and_the_messages_of_a_batch_are_reached(page, shown):
    page.goto(shown.address("messages-batch"))
    settled(page)
    page.locator("main a.back").focus()
    tab_to(page, page.get_by_role("link", name=re.compile("^1 of 48")))
    tab_to(page, page.get_by_role("tab", name="Hex"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Hex")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Hex")).to_be_focused()


DIALOGS = [
    ("topics", "Create topic"),
    ("topics-detail", "Change"),
    ("topics-detail", "Delete"),
    ("groups-detail", "Reset offsets"),
    ("messages-found", "Send a test message"),
]


@pytest.mark.parametrize(("name", "action"), DIALOGS, ids=lambda value: value.replace(" ", "-"))
def test_a_dialog_takes_the_focus_and_gives_it_back(page, shown, name, action):
    page.goto(shown.address(name))
    settled(page)
    opener = page.get_by_role("button", name=action)
    dialog = page.get_by_role("dialog")
    tab_to(page, opener)
    page.keyboard.press("Enter")
    expect(dialog.locator("input, textarea, select").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, dialog.get_by_role("button", name="Cancel"))
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()


def test_the_second_dialog_of_a_reset_gives_the_focus_back(page, shown):
    page.goto(shown.address("groups-detail"))
    settled(page)
    opener = page.get_by_role("button", name="Reset offsets")
    opener.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("textbox")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(opener).to_be_focused()


def test_a_dialog_that_is_refused_keeps_the_focus_inside(page, shown):
    page.goto(shown.address("topics"))
    settled(page)
    page.get_by_role("button", name="Create topic").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("orders")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("exists already")
    expect(page.get_by_role("dialog").get_by_label("Topic")).to_be_focused()
    page.problems.clear()  # the browser itself reports the answer 400


REFRESHED = [
    ("topics-detail", "**/api/topic?*", 11_000, lambda page: page.get_by_role("link", name="billing")),
    (
        "groups-detail",
        "**/api/group?*",
        6_000,
        lambda page: page.get_by_role("table", name="Members").get_by_role("button", name="Address"),
    ),
    ("groups-detail", "**/api/group?*", 6_000, lambda page: page.get_by_role("table", name="Queues").get_by_role("link").first),
    ("spark", "**/api/spark*", 6_000, lambda page: page.get_by_role("button", name="End")),
]


@pytest.mark.parametrize(("name", "answer", "period_ms", "find"), REFRESHED)
def test_a_refresh_leaves_focus_and_order(page, shown, name, answer, period_ms, find):
    page.clock.install()
    page.goto(shown.address(name))
    settled(page)
    one = find(page)
    one.focus()
    if one.evaluate("element => element.matches('th button')"):
        page.keyboard.press("Enter")
    sorts = page.locator("th").evaluate_all("heads => heads.map((head) => head.ariaSort)")
    with page.expect_response(answer):
        page.clock.run_for(period_ms)
    page.wait_for_load_state("networkidle")
    expect(find(page)).to_be_focused()
    assert page.locator("th").evaluate_all("heads => heads.map((head) => head.ariaSort)") == sorts
