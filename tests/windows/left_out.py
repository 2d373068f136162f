"""A plugin of pytest: the tests of what Windows cannot do are skipped (``make test-windows``)."""

import pytest
from tests.systems import leave_out

_MODES = "Windows has access lists in the place of modes"
_FORK = "Windows has no fork"
_SERVER = "the server of this test waits for sockets as it does on Linux"
_LIMIT = "Windows has no limit of open files"

# By the beginning of a test's name.
LEFT_OUT = {
    "tests/unit/cli/test_produce_and_consume.py::test_a_produce_that_is_stopped_twice": "what a thread has read need not be sent yet",
    "tests/unit/cli/test_users.py::test_a_secret_of_a_file": _MODES,
    "tests/unit/client/consume/test_offset_files.py::test_a_crash_at_any_step": "Windows cannot flush a directory",
    "tests/unit/client/test_credentials.py::test_a_file_that_others_may_touch": _MODES,
    "tests/unit/client/test_encrypted.py": _SERVER,
    "tests/unit/client/test_exports.py::test_importing_the_package": "what stands for Windows here imports asyncio itself",
    "tests/unit/client/test_sync.py::test_a_forked_child": _FORK,
    "tests/unit/client/test_sync.py::test_an_async_client_in_a_forked_child": _FORK,
    "tests/unit/net/test_link.py::test_a_connection_that_arrives_while_the_server_stops": _SERVER,
    "tests/unit/net/test_tls_listener.py": _SERVER,
    "tests/unit/net/test_loops.py::test_a_forked_child": _FORK,
    "tests/unit/net/test_sockets.py::test_servers_raise_the_limit": _LIMIT,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip them."""
    leave_out(items, LEFT_OUT)
