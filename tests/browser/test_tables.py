"""The table of all lists, with 10,000 rows: few of them are elements, and filter, order and keys reach all."""

import pytest
from playwright.sync_api import expect

ROWS = """async ({ count }) => {
  const { table, link } = await import("/static/ui.js");
  const rows = Array.from({ length: count }, (_, i) => ({ name: `topic-${i}`, rate: i % 7 === 0 ? null : (i * 7919) % count }));
  const made = table({
    columns: [
      { key: "name", title: "Name", value: (row) => row.name, render: (row) => link("/topics", { topic: row.name }, row.name) },
      { key: "rate", title: "Rate", value: (row) => row.rate, right: true },
    ],
    key: (row) => row.name,
    text: (row) => row.name,
    sort: ["name", "ascending"],
    empty: "none",
  });
  document.querySelector("main").replaceChildren(made.element);
  const before = performance.now();
  made.update(rows);
  window.made = made;
  await new Promise(requestAnimationFrame);
  return performance.now() - before;
}"""


@pytest.fixture
def listed(page, dashboard):
    page.goto(dashboard)
    expect(page.locator(".live")).to_have_text("Live")
    took_ms = page.evaluate(ROWS, {"count": 10_000})
    print(f"10,000 rows in {took_ms:.0f} ms")
    return page


def test_only_the_rows_in_sight_are_elements(listed):
    assert listed.locator("main tbody tr").count() < 100
    expect(listed.locator("table")).to_have_attribute("aria-rowcount", "10001")
    listed.locator(".table-box").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(listed.get_by_text("topic-9999", exact=True)).to_be_visible()
    assert listed.locator("main tbody tr").count() < 100


def test_the_filter_finds_what_is_out_of_sight(listed):
    listed.locator("main input[type=search]").fill("TOPIC-987")
    expect(listed.get_by_text("topic-9876", exact=True)).to_be_visible()
    expect(listed.get_by_role("status").filter(has_text="of")).to_contain_text("11 of 10000")
    listed.locator("main input[type=search]").fill("<b>")
    expect(listed.get_by_text("Nothing matches the filter.")).to_be_visible()


def test_rows_are_sorted_by_any_column_and_the_unknown_come_last(listed):
    expect(listed.locator("main tbody tr.openable, main tbody tr[data-key]").first).to_contain_text("topic-0")
    listed.get_by_role("button", name="Rate").click()
    expect(listed.locator("th", has_text="Rate")).to_have_attribute("aria-sort", "descending")
    expect(listed.locator("main tbody tr[data-key]").first).to_contain_text("9999")
    listed.get_by_role("button", name="Rate").click()
    assert listed.evaluate("made.shown.slice(-5).every((row) => row.rate === null)")
    assert listed.evaluate("made.shown[0].rate !== null")


def test_an_update_keeps_filter_order_and_position(listed):
    listed.locator(".table-box").evaluate("box => { box.scrollTop = 5000; }")
    listed.get_by_role("button", name="Rate").click()
    listed.locator("main input[type=search]").fill("topic-1")
    listed.evaluate("made.update(Array.from({ length: 2000 }, (_, i) => ({ name: `topic-${i}`, rate: i })))")
    expect(listed.locator("main tbody tr[data-key]").first).to_contain_text("topic-1999")
    assert listed.evaluate("made.shown.length") == 1111
