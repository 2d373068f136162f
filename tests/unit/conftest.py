import logging

import pytest
from tests.certificates import Authority, Pair
from tests.waiting import be_patient

from sprocketmq.net.link import Link


@pytest.fixture(autouse=True)
def patience():
    """Do without the short time limits that clients have by default."""
    with pytest.MonkeyPatch.context() as patch:  # of its own: a test may undo what it patched
        be_patient(patch)
        yield


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> Authority:
    """An authority for the certificates of servers and clients."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def server_certificate(authority) -> Pair:
    """A certificate for servers on this machine."""
    return authority.issue("server")


@pytest.fixture
def said(caplog):
    """Return a function that gives the log lines of some events."""
    caplog.set_level(logging.INFO)

    def lines(*names):
        records = [*caplog.get_records("setup"), *caplog.get_records("call")]
        return [record.getMessage() for record in records if getattr(record, "event", "") in names]

    return lines


@pytest.fixture(autouse=True, scope="session")
def received_bytes_end_with_their_handler():
    """Overwrite what a connection received as soon as its commands are handled: who still reads a body then fails its test."""
    with pytest.MonkeyPatch.context() as patch:
        buffer_updated = Link.buffer_updated

        def handled_and_overwritten(link, count):
            buffer_updated(link, count)
            view = link._frames._receive.view
            view[: len(view)] = b"\xdb" * len(view)

        patch.setattr(Link, "buffer_updated", handled_and_overwritten)
        yield
