"""``serve``, ``namesrv`` and ``broker`` as processes."""

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.ports import address_of, hold

from sprocketmq import Message, sync
from sprocketmq.cli.app import main
from sprocketmq.cli.config import KEYS, Settings, data_directory
from sprocketmq.cli.serving_options import kv_file
from sprocketmq.cli.stopping import watch_stdin
from sprocketmq.errors import ConfigError, SprocketError
from sprocketmq.events import quoted
from sprocketmq.net.address import own_address, parse_address
from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.own_process import SWITCH_INTERVAL_S
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing import wait_until

FREE = ("--port", "0", "--namesrv-port", "0")


def send(namesrv, *bodies, topic="orders"):
    with sync.Producer("pg", namesrv=namesrv) as producer:
        return producer.send_batch([Message(topic, body) for body in bodies])


def bodies(namesrv, topic="orders"):
    found = []
    with sync.PullConsumer("cg", namesrv=namesrv) as consumer:
        for queue in consumer.queues(topic):
            end = consumer.max_offset(queue)
            offset = consumer.min_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset, max_messages=1000)
                found += [m.body for m in result.messages]
                offset = result.next_offset
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_when_it_is_ready_takes_traffic_and_stops_cleanly_on_a_signal(serving, tmp_path, number):
    server = serving("serve", *FREE, "--store", str(tmp_path / "store"))
    address = server.address
    assert server.ready == f"ready namesrv={address['namesrv']} broker={address['broker']} store={quoted(tmp_path / 'store')}\n"
    send(address["namesrv"], b"one")
    assert bodies(address["namesrv"]) == [b"one"]
    assert server.end(number) == (0, "")
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limits of another process can be read on Linux only")
@pytest.mark.parametrize("verb", [["serve", *FREE], ["namesrv", "--port", "0"]], ids=["serve", "namesrv"])
def test_a_server_raises_the_limit_of_open_files_that_its_shell_has_given_it(tmp_path, verb):
    command = ["sh", "-c", 'ulimit -Sn 256 && exec "$0" "$@"', sys.executable, "-m", "sprocketmq", *verb, "--store", str(tmp_path)]
    with subprocess.Popen([*command, "--stop-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline().startswith(b"ready")
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        server.stdin.close()
        assert server.wait(60) == 0
    assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


def test_a_killed_server_loses_nothing_acknowledged(serving, tmp_path):
    sent = [b"%d" % i for i in range(500)]
    server = serving("serve", *FREE, "--store", str(tmp_path))
    send(server.address["namesrv"], *sent)
    assert server.end(signal.SIGKILL)[0] == -signal.SIGKILL
    server = serving("serve", *FREE, "--store", str(tmp_path))
    assert bodies(server.address["namesrv"]) == sent
    assert server.end() == (0, "")


def keep(namesrv, value=None):
    """Set the nameserver's item ``n/a`` when there is a value, and return it."""

    async def run():
        pool = ConnectionPool(expected="nameserver")
        conn = await pool.get(namesrv)
        if value is not None:
            assert (await conn.request(100, ext={"namespace": "n", "key": "a", "value": value}, timeout_s=60)).code == 0
        answer = await conn.request(101, ext={"namespace": "n", "key": "a"}, timeout_s=60)
        await pool.close()
        return answer.ext.get("value")

    return asyncio.run(run())


@pytest.mark.parametrize("verb", ["serve", "namesrv"])
def test_the_key_value_configuration_outlives_a_kill(serving, tmp_path, verb):
    command = (verb, *(FREE if verb == "serve" else ("--port", "0")), "--store", str(tmp_path))
    server = serving(*command)
    assert keep(server.address["namesrv"], "kept") == "kept"
    server.end(signal.SIGKILL)
    server = serving(*command)
    assert keep(server.address["namesrv"]) == "kept"
    assert server.end() == (0, "")
    assert (tmp_path / "namesrv" / "kvConfig.json").exists()


def test_a_nameserver_without_a_directory_has_one_named_after_its_port(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert str(kv_file(Settings(), None).path) == f"{tmp_path}/sprocketmq/namesrv-9876/namesrv/kvConfig.json"
    assert kv_file(Settings(namesrv_port=0), None) is None


def test_namesrv_and_broker_run_apart(serving, tmp_path):
    namesrv = serving("namesrv", "--port", "0")
    address = namesrv.address["namesrv"]
    broker = serving("broker", "--port", "0", "--store", str(tmp_path), "--name", "broker-x", environ={"NAMESRV_ADDR": address})
    assert broker.ready.startswith("ready broker=127.0.0.1:")
    with sync.AdminClient(namesrv=address) as admin:
        assert admin.cluster().broker_addr_table["broker-x"].broker_addrs == {0: broker.address["broker"]}
    assert send(address, b"one")[0].broker_name == "broker-x"
    assert broker.end() == (0, "")
    with sync.AdminClient(namesrv=address) as admin:
        assert not admin.cluster().broker_addr_table
    assert namesrv.end() == (0, "")


def test_a_second_broker_of_one_name_ends_with_one_sentence_unless_it_takes_over(serving, tmp_path, capfd):
    server = serving("serve", *FREE, "--store", str(tmp_path / "first"))
    second = ("broker", "--namesrv", server.address["namesrv"], "--port", "0", "--store", str(tmp_path / "second"))
    assert main(second) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert f"has a broker broker-a at {server.address['broker']}, and it answers" in line
    assert "choose another name (--name), stop the other broker, or replace it (--take-over)" in line
    taking = serving(*second, "--take-over")
    with sync.AdminClient(namesrv=server.address["namesrv"]) as admin:
        assert admin.cluster().broker_addr_table["broker-a"].broker_addrs == {0: taking.address["broker"]}
    taking.end()


def test_a_configuration_file_is_read_and_the_command_line_beats_it(serving, tmp_path):
    (tmp_path / "mq.toml").write_text(
        f'store = "{tmp_path}/from-file"\nport = 0\nnamesrv_port = 0\nauto_create_topic = false\nflush_interval_s = 1\nbroker_name = "b"\n'
    )
    server = serving("serve", "--config", str(tmp_path / "mq.toml"), "--name", "broker-z", "--set", "default_topic_queues=3")
    assert server.address["store"] == f"{tmp_path}/from-file"
    with sync.AdminClient(namesrv=server.address["namesrv"]) as admin:
        assert list(admin.cluster().broker_addr_table) == ["broker-z"]
    assert server.end() == (0, "")


def test_without_a_store_option_messages_are_kept_in_the_users_data_directory(serving, tmp_path):
    server = serving("serve", *FREE, "--name", "broker-q", environ={"XDG_DATA_HOME": str(tmp_path)})
    assert server.address["store"] == str(tmp_path / "sprocketmq" / "broker-q")
    assert server.end() == (0, "")


def test_a_server_started_as_a_child_ends_with_its_standard_input(serving, tmp_path):
    server = serving("serve", *FREE, "--store", str(tmp_path), "--stop-with-stdin")
    server.process.stdin.write("anything is ignored\n")
    server.process.stdin.close()
    server.process.stdin = None
    assert server.wait() == (0, "")


@pytest.mark.parametrize("verb", ["serve", "broker", "namesrv"])
def test_a_server_of_its_own_process_exempts_what_it_has_loaded_from_garbage_collection_and_switches_threads_often(tmp_path, verb):
    program = (
        "import atexit, gc, sys\n"
        "from sprocketmq.cli.app import main\n"
        "atexit.register(lambda: print(gc.get_freeze_count(), sys.getswitchinterval()))\n"
        "sys.exit(main())"
    )
    arguments = {
        "serve": [*FREE, "--store", str(tmp_path)],
        "broker": ["--port", "0", "--store", str(tmp_path), "--namesrv", "127.0.0.1:1"],
        "namesrv": ["--port", "0", "--store", str(tmp_path)],
    }[verb]
    command = [sys.executable, "-c", program, verb, *arguments, "--stop-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("ready ")
        printed, _ = process.communicate(timeout=60)
    frozen, interval = printed.split()
    assert int(frozen) > 10_000
    assert float(interval) == SWITCH_INTERVAL_S


def run_until_it_ends(*arguments, **streams):
    done = subprocess.run([sys.executable, "-m", "sprocketmq", *arguments], stderr=subprocess.PIPE, timeout=60, check=False, **streams)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("stdin", ["a file", "/dev/null", "closed"])
def test_a_standard_input_whose_end_cannot_be_waited_for_is_refused(tmp_path, stdin):
    (tmp_path / "file").write_text("text\n")
    arguments = ["namesrv", "--port", "0", "--stop-with-stdin"]
    if stdin == "closed":
        code, err = run_until_it_ends(*arguments, preexec_fn=lambda: os.close(0))
    else:
        with (tmp_path / "file" if stdin == "a file" else Path(stdin)).open() as source:
            code, err = run_until_it_ends(*arguments, stdin=source)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(
        "sprocketmq: --stop-with-stdin waits for the end of a pipe, a socket or a terminal, and standard input is a file,"
    )


async def test_a_standard_input_without_data_at_the_moment_has_not_ended(monkeypatch):
    looks = []
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    monkeypatch.setattr(loop, "add_reader", lambda _, look: looks.append(look))
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        watch_stdin(loop, stop)
        looks[0]()
        assert not stop.is_set()
        os.close(writing)
        looks[0]()
        assert stop.is_set()


@pytest.mark.parametrize("stdout", ["a closed pipe", "/dev/full"])
def test_a_server_whose_ready_line_nobody_can_read_fails_and_says_so(stdout):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") if stdout == "a closed pipe" else Path(stdout).open("w") as target:
        code, err = run_until_it_ends("namesrv", "--port", "0", stdout=target)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("sprocketmq: the ready line cannot be written to standard output: ")


def test_a_store_that_fails_ends_the_process_with_one_clear_line(tmp_path, monkeypatch, capfd):
    def fail(self):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(MessageStore, "flush_log", fail)

    def use(namesrv):
        wait_until(lambda: is_up(namesrv), timeout_s=60)
        send(namesrv, b"one")

    with hold() as held:
        namesrv = address_of(held)
        user = threading.Thread(target=use, args=(namesrv,))
        user.start()
        port = namesrv.rpartition(":")[2]
        code = main(["serve", "--port", "0", "--namesrv-port", port, "--store", str(tmp_path), "--set", "flush_interval_s=0.01"])
        user.join()
    _, err = capfd.readouterr()
    assert code == 1
    line = err.splitlines()[-1]
    assert line.startswith("sprocketmq: flush of ")
    assert "Input/output error; the store refuses writes until the broker is restarted; stopping" in line
    assert "Traceback" not in err


def is_up(namesrv):
    try:
        with sync.AdminClient(namesrv=namesrv) as admin:
            return admin.cluster().broker_addr_table
    except SprocketError:
        return False


def test_serving_loads_no_terminal_library(tmp_path):
    code = (
        "import sys, sprocketmq.cli.app as app; sys.argv = ['sprocketmq', 'serve', '--help']; app.main();"
        "import sprocketmq.broker.server, sprocketmq.namesrv.server;"
        "sys.exit(', '.join({'typer', 'rich', 'numpy', 'pyarrow', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""  # sys.exit prints the names it is given
    assert "usage: sprocketmq serve" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--host", "192.0.2.1"), "or add --insecure if only machines you trust can reach it"),
        (("serve", "--host", "*"), "or add --insecure if only machines you trust can reach it"),
        (("serve", "--advertise", "*"), "--advertise: '*' cannot be advertised: it stands for all addresses of a machine"),
        (("serve", "--advertise", "0.0.0.0"), "'0.0.0.0' cannot be advertised"),
        (("serve", "--advertise", "mq:10911"), "it is neither a host name nor an IP address (the port is added to it)"),
        (("serve", "--store", ""), "--store is empty: give it a value, or leave it out"),
        (("serve", "--log-file", ""), "--log-file is empty: give it a value, or leave it out"),
        (("broker",), "pass --namesrv HOST:PORT"),
        (("broker", "--namesrv", "nowhere"), "'nowhere' is not an address"),
        (("serve", "--name", "no good"), "broker name 'no good' is not valid"),
        (("serve", "--set", "colour=red"), "--set: unknown key 'colour'; the keys are: host, advertise, port"),
        (("serve", "--set", "flush_disk_typ=SYNC_FLUSH"), "--set: unknown key 'flush_disk_typ'; did you mean flush_disk_type?"),
        (("serve", "--set", "flushDiskTyp=SYNC_FLUSH"), "unknown key 'flushDiskTyp'; did you mean flush_disk_type?"),
        (("serve", "--set", "enableDLedgerCommitLog=1"), "unknown key 'enableDLedgerCommitLog'; did you mean enableDLegerCommitLog?"),
        (("serve", "--set", "fileReservedTime=2d"), "--set: fileReservedTime must be a whole number, not '2d'"),
        (
            ("serve", "--set", "aclEnable=true"),
            "--set: aclEnable can only be false here, not 'true': Apache's broker has no ACL 1.0 any more",
        ),
        (("serve", "--set", "port"), "write KEY=VALUE"),
        (("serve", "--set", "port=x"), "port must be a whole number, not 'x'"),
        (("serve", "--set", "port=99999"), "from 0 (any free port) to 65535"),
        (("serve", "--set", "preallocate=maybe"), "preallocate must be true or false"),
        (("serve", "--set", "log_level=loud"), "log_level must be one of debug, info, warning, error"),
        (("serve", "--set", f"commitlog_segment_bytes={10**17}", *FREE), "commitlog_segment_bytes must be at most 1099511627776"),
        (("serve", "--set", f"batchqueue_segment_bytes={46 * 10**15}", *FREE), "batchqueue_segment_bytes must be at most 1099511627776"),
        (("serve", "--set", "consumequeue_segment_bytes=7", *FREE), "must be a multiple of 20"),
        (("serve", "--config", "/nowhere.toml"), "cannot read configuration file /nowhere.toml: No such file or directory"),
        (("serve", "--port", "-1"), "is not a port"),
        (("serve", "--port", "http"), "'http' is not a port"),
        (("serve", "extra"), "Error: Got unexpected extra argument (extra)\n"),
        (("serve", "--prt", "1"), "Error: No such option: --prt (did you mean --port?)\n"),
        (("namesrv", "--xyzzy=1"), "Try 'sprocketmq namesrv -h' for help.\n\nError: No such option: --xyzzy\n"),
        (("serve", "--fast-port-enable"), "No such option: --fast-port-enable (it is a setting: --set fast_port_enable=VALUE)"),
        (("dashboard", "--hots", "x"), "No such option: --hots (did you mean --host?)"),
        (("demo", "--limit", "-1"), "Usage: sprocketmq demo [OPTIONS]"),
    ],
)
def test_settings_that_cannot_be_are_explained(arguments, words, capfd, monkeypatch, tmp_path):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert words in err
    assert (out, "Traceback" in err) == ("", False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("brokerIP1 = '10.0.0.1'", "unknown key 'brokerIP1'; it is called advertise here"),
        ("colour = 'red'", "unknown key 'colour'; the keys are"),
        ("port = '9'", "port must be a whole number, not '9'"),
        ("auto_create_topic = 1", "auto_create_topic must be true or false, not 1"),
        ("port = true", "port must be a whole number, not True"),
        ("[broker]\nport = 1", "unknown key 'broker'"),
        ("port =", "is not valid TOML"),
    ],
)
def test_a_bad_configuration_file_is_explained(text, words, tmp_path):
    (tmp_path / "mq.toml").write_text(text)
    with pytest.raises(ConfigError, match=words) as failure:
        Settings().put_file(tmp_path / "mq.toml")
    assert str(tmp_path / "mq.toml") in str(failure.value)


def test_every_key_has_a_type_that_text_can_give():
    assert set(KEYS.values()) <= {str, int, float, bool}
    settings = Settings()
    settings.put_text("flush_interval_s=2", "here")
    settings.put_text("preallocate = False", "here")
    assert (settings.flush_interval_s, settings.preallocate) == (2.0, False)


def test_settings_come_from_the_environment_too(tmp_path, monkeypatch, capfd):
    (tmp_path / "mq.toml").write_text('port = 1\nbroker_name = "file"\nregion = "north"\n')
    monkeypatch.setenv("SPROCKETMQ_SET_PORT", "2")
    monkeypatch.setenv("SPROCKETMQ_SET_BROKER_NAME", "environment")
    monkeypatch.setenv("SPROCKETMQ_PORT", "tcp://10.0.0.1:9876")  # as Kubernetes sets it for a service of this name
    assert main(["serve", "--config", str(tmp_path / "mq.toml"), "--set", "clean_interval_s=3", "--name", "option", "--show-config"]) == 0
    out = capfd.readouterr().out
    lines = out.splitlines()
    assert [line.partition(" ")[0] for line in lines if not line.startswith("# ")] == [key for key in KEYS if f"# {key} is" not in out]
    assert "port = 2  # SPROCKETMQ_SET_PORT" in lines
    assert f'region = "north"  # configuration file {tmp_path}/mq.toml' in lines
    assert 'broker_name = "option"  # --name' in lines
    assert "clean_interval_s = 3.0  # --set" in lines
    assert "namesrv_port = 9876  # default" in lines
    assert "# ha_port is not set  # default" in lines
    # What is shown is a configuration file itself.
    (tmp_path / "shown.toml").write_text(out)
    monkeypatch.delenv("SPROCKETMQ_SET_PORT")
    monkeypatch.delenv("SPROCKETMQ_SET_BROKER_NAME")
    settings = Settings()
    settings.put_file(tmp_path / "shown.toml")
    assert (settings.port, settings.broker_name, settings.clean_interval_s) == (2, "option", 3.0)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SPROCKETMQ_SET_PORT", "many", "SPROCKETMQ_SET_PORT: port must be a whole number, not 'many'"),
        ("SPROCKETMQ_SET_PROT", "1", "SPROCKETMQ_SET_PROT: unknown key 'prot'; did you mean port?"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch, capfd, name, value, words):
    monkeypatch.setenv(name, value)
    assert main(["serve", "--show-config"]) == 2
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_are_completed(monkeypatch, capfd, shell):
    monkeypatch.setenv("_SPROCKETMQ_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "sprocketmq topic de")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("COMP_WORDS", "sprocketmq topic de")
    monkeypatch.setenv("COMP_CWORD", "2")
    main([])
    assert "delete" in capfd.readouterr().out


def in_use(server, tmp_path):
    return ("serve", "--namesrv-port", "0", "--port", server.address["broker"].rpartition(":")[2], "--store", str(tmp_path / "other"))


def same_namesrv_port(server, tmp_path):
    return ("serve", "--port", "0", "--namesrv-port", server.address["namesrv"].rpartition(":")[2], "--store", str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (in_use, 1, "address already in use; choose another port (0 means any free port) or stop the process that uses it"),
        (same_namesrv_port, 1, "address already in use; choose another port"),
        (lambda server, tmp_path: ("serve", *FREE, "--store", str(tmp_path / "store")), 1, "is in use by another broker (process"),
        (
            lambda server, tmp_path: ("serve", *FREE, "--store", str(tmp_path / "file")),
            1,
            "is not writable: Not a directory; choose another",
        ),
        (lambda server, tmp_path: ("serve", *FREE, "--store", str(tmp_path / "file/store")), 1, "is not writable: Not a directory"),
        (lambda server, tmp_path: ("serve", *FREE, "--host", "192.0.2.1", "--insecure"), 2, "cannot listen on host '192.0.2.1'"),
        (lambda server, tmp_path: ("namesrv", "--port", "0", "--host", "a b", "--insecure"), 2, "cannot listen on host 'a b': "),
        (lambda server, tmp_path: ("serve", *FREE, "--advertise", "no.such.host.invalid"), 2, "'no.such.host.invalid' does not resolve"),
    ],
)
def test_a_start_that_cannot_be_ends_with_one_sentence(serving, tmp_path, capfd, monkeypatch, arguments, code, words):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    server = serving("serve", *FREE, "--store", str(tmp_path / "store"))
    (tmp_path / "file").write_text("no directory")
    assert main(arguments(server, tmp_path)) == code
    out, err = capfd.readouterr()
    (line,) = err.splitlines()
    assert line.startswith("sprocketmq: ")
    assert words.lower() in line.lower()
    assert out == ""


def test_a_log_level_may_be_written_in_capitals():
    settings = Settings()
    settings.put_text("log_level=INFO", "here")
    assert settings.log_level == "info"


@pytest.mark.parametrize("host", ["*", "0.0.0.0"])
def test_a_wildcard_host_is_told_to_clients_as_a_real_address(serving, tmp_path, host):
    server = serving("serve", *FREE, "--store", str(tmp_path / "store"), "--host", host, "--insecure")
    expected = own_address(host)
    for address in server.address["namesrv"], server.address["broker"]:
        assert parse_address(address)[0] == expected
    with sync.AdminClient(namesrv=server.address["namesrv"]) as admin:
        assert admin.cluster().broker_addr_table["broker-a"].broker_addrs == {0: server.address["broker"]}
    send(server.address["namesrv"], b"one")
    assert bodies(server.address["namesrv"]) == [b"one"]


def test_a_new_store_is_called_new_and_a_reopened_one_is_not(serving, tmp_path):
    command = ("serve", *FREE, "--store", str(tmp_path / "store"), "--set", "log_level=INFO")
    _, first = serving(*command).end()
    _, second = serving(*command).end()
    assert 'after="nothing: it is new"' in first
    assert 'after="a clean stop"' in second


def test_the_data_directory_is_the_systems(monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert str(data_directory()) == "/data/sprocketmq"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert str(data_directory()).startswith(os.path.expanduser("~"))


def test_help_lists_every_verb(capfd):
    assert main(["--help"]) == 0
    out = capfd.readouterr().out
    for verb in ("serve", "namesrv", "broker", "topic", "produce", "consume", "demo"):
        assert f"  {verb} " in out
    for option in ("--version", "-V"):
        assert main([option]) == 0
        assert capfd.readouterr().out.startswith("sprocketmq ")
    assert main(["frobnicate"]) == 2
    assert "No such command 'frobnicate'" in capfd.readouterr().err
