"""A plugin of pytest: the tests of what macOS cannot do are skipped (``make test-macos``)."""

import pytest
from tests.systems import leave_out

_HOLES = "macOS does not say reliably where holes are, so that they are read"
_RESERVED = "macOS has no posix_fallocate"

# By the beginning of a test's name.
LEFT_OUT = {
    "tests/crash/test_disk_full.py::test_a_disk_that_fills_up": _RESERVED,
    "tests/crash/test_disk_full.py::test_a_disk_too_small": "a hole in a full tmpfs of Linux cannot be read through a mapping",
    "tests/spark/test_jre.py::test_the_runtime_of_the_wheel": "it chooses the cache directory by the variable of Linux",
    "tests/unit/cli/test_bench_omb.py::test_a_run_writes_a_result": "processor times of servers come from /proc",
    "tests/unit/cli/test_serving_many.py::test_one_page_has_the_metrics": "memory and processor times of processes come from /proc",
    "tests/unit/embedded/test_local_cluster.py::test_the_ports_of_servers": "a port that is reserved would be refused to its server, too",
    "tests/unit/storage/bulk/test_pipeline.py::test_the_data_end_ignores": _HOLES,
    "tests/unit/storage/bulk/test_splits.py::test_what_was_never_written": _HOLES,
    "tests/unit/storage/queues/test_cold_reads.py::test_what_left_the_page_cache": "macOS has no posix_fadvise to drop pages by",
    "tests/unit/storage/test_formats.py::test_blocks_are_reserved": _RESERVED,
    "tests/unit/storage/test_hostile_files.py::test_terabytes_of_holes": _HOLES,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip them."""
    leave_out(items, LEFT_OUT)
