"""The shipped pytest plugin, and the helpers that wait."""

import subprocess
import sys

import pytest

from sprocketmq import Message, Producer, sync
from sprocketmq.errors import AuthenticationFailed
from sprocketmq.net.tls import TlsConfig
from sprocketmq.testing import eventually, wait_until


def test_the_fixture_is_a_running_cluster(rocketmq):
    with sync.Producer("shop", namesrv=rocketmq.namesrv) as producer:
        producer.send(Message("orders", b"o1", tag="new"))
    (message,) = rocketmq.messages("orders", count=1)
    assert (message.body, message.tag) == (b"o1", "new")


async def test_the_fixture_serves_async_tests(rocketmq):
    async with Producer("shop", namesrv=rocketmq.namesrv) as producer:
        await producer.send(Message("orders", b"o1"))
    await eventually(lambda: len(rocketmq.messages("orders")) == 1)


@pytest.mark.rocketmq(brokers=2, auto_create_topic=False)
def test_the_marker_passes_options(rocketmq):
    assert len(rocketmq.brokers) == 2
    rocketmq.create_topic("orders", queues=3)
    with sync.AdminClient(namesrv=rocketmq.namesrv) as admin:
        assert admin.topics().count("orders") == 1
        assert len(admin.queues("orders")) == 6


def test_each_test_gets_a_cluster_of_its_own(rocketmq):
    assert rocketmq.messages("orders") == []


def test_the_secured_cluster_is_for_its_users(rocketmq_secure):
    with sync.Producer("shop", namesrv=rocketmq_secure.namesrv, secure=rocketmq_secure.secure) as producer:
        producer.send(Message("orders", b"o1"))
    assert [message.body for message in rocketmq_secure.messages("orders")] == [b"o1"]
    tls = TlsConfig(ca_file=rocketmq_secure.secure / "ca.pem")
    with pytest.raises(AuthenticationFailed), sync.AdminClient(namesrv=rocketmq_secure.namesrv, tls=tls) as admin:
        admin.topics()


def test_the_plugin_loads_nothing_heavy_before_a_test_asks_for_it():
    code = "import sys, sprocketmq.testing.plugin; print([m for m in ('asyncio', 'msgspec', 'sprocketmq.embedded') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "says"), [("2", "takes options by name"), ("broker=2", "has no option broker; the options are store, brokers,")]
)
def test_marker_options_that_cannot_be_are_explained(tmp_path, options, says):
    (tmp_path / "test_it.py").write_text(f"import pytest\n@pytest.mark.rocketmq({options})\ndef test_it(rocketmq): ...\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert says in done.stdout


def test_wait_until_returns_what_became_true():
    answers = iter([0, None, 7])
    assert wait_until(lambda: next(answers)) == 7


def test_wait_until_says_what_did_not_happen():
    with pytest.raises(TimeoutError, match=r"three orders did not come true within 0\.02 s"):
        wait_until(lambda: False, timeout_s=0.02, what="three orders")


def test_a_failing_assertion_means_not_yet_and_is_the_cause_in_the_end():
    def condition():
        assert len([]) == 1

    with pytest.raises(TimeoutError) as failure:
        wait_until(condition, timeout_s=0.02)
    assert isinstance(failure.value.__cause__, AssertionError)


def test_other_errors_come_through_at_once():
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0)


async def test_eventually_takes_functions_and_coroutine_functions():
    answers = iter([0, 0, 5, 0, 0, 6])

    async def later():
        return next(answers)

    assert await eventually(later) == 5
    assert await eventually(lambda: next(answers)) == 6
    with pytest.raises(TimeoutError, match="within"):
        await eventually(lambda: False, timeout_s=0.02)
