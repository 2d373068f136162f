"""The reference pages that are made from the code are those of this code, and the pages of the API show every public name."""

import pytest
from docs.tools.reference import GENERATED, PAGES, shown

import sprocketmq
import sprocketmq.embedded
import sprocketmq.otel
import sprocketmq.spark
import sprocketmq.sync
import sprocketmq.testing

PACKAGES = (sprocketmq, sprocketmq.sync, sprocketmq.embedded, sprocketmq.testing, sprocketmq.spark, sprocketmq.otel)
# Modules, and names with a page of their own.
ELSEWHERE = {"sprocketmq.__version__", "sprocketmq.errors", "sprocketmq.sync", "sprocketmq.SprocketError"}


@pytest.fixture(autouse=True)
def patience():
    """Leave the defaults as users have them: they are what the pages show."""


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_is_up_to_date(page):
    assert (PAGES / page).read_text(encoding="utf-8") == GENERATED[page](), "run python -m docs.tools.reference and commit its pages"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_the_api_pages_show_every_public_name(package):
    public = {f"{package.__name__}.{name}" for name in package.__all__}
    assert public - shown() - ELSEWHERE == set()
