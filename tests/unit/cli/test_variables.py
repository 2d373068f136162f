"""Options of ``dashboard`` and ``proxy`` by variables of the environment, and where each came from."""

import pytest

from sprocketmq.cli.app import main


def shown(capsys, *arguments):
    code = main([*arguments, "--show-config"])
    out, err = capsys.readouterr()
    lines = dict(line.split(" = ", 1) for line in out.splitlines())
    return code, lines, err


def test_the_command_line_overrides_variables_and_these_the_defaults(capsys, monkeypatch):
    for name, value in {"PORT": "8000", "HOST": "127.0.0.2", "ALLOW_HOST": "a.example,b.example", "READ_ONLY": "1", "TLS": "no"}.items():
        monkeypatch.setenv(f"SPROCKETMQ_DASHBOARD_SET_{name}", value)
    code, lines, _ = shown(capsys, "dashboard", "--port", "9000", "--log-level", "info")
    assert code == 0
    assert lines["port"] == "9000  # --port"
    assert lines["log_level"] == '"info"  # --log-level'
    assert lines["host"] == '"127.0.0.2"  # SPROCKETMQ_DASHBOARD_SET_HOST'
    assert lines["allow_host"] == '["a.example", "b.example"]  # SPROCKETMQ_DASHBOARD_SET_ALLOW_HOST'
    assert lines["read_only"] == "true  # SPROCKETMQ_DASHBOARD_SET_READ_ONLY"
    assert lines["tls"] == "false  # SPROCKETMQ_DASHBOARD_SET_TLS"
    assert lines["insecure"] == "false  # default"
    assert not {"help", "show_config", "stop_with_stdin"} & set(lines)


def test_a_variable_has_the_effect_of_its_option(capsys, monkeypatch):
    monkeypatch.setenv("SPROCKETMQ_PROXY_SET_HOST", "0.0.0.0")
    assert main(["proxy"]) == 2
    assert "--host 0.0.0.0 lets other machines in" in capsys.readouterr()[1]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PORT", "80x", "SPROCKETMQ_PROXY_SET_PORT: '80x' is not a port: write a number from 0 (any free port) to 65535"),
        ("PROT", "80", "SPROCKETMQ_PROXY_SET_PROT is not an option of `sprocketmq proxy`: did you mean SPROCKETMQ_PROXY_SET_PORT?"),
        ("COLOUR", "", "SPROCKETMQ_PROXY_SET_COLOUR is not an option of `sprocketmq proxy`; remove it"),
        ("TLS_ONLY", "maybe", "SPROCKETMQ_PROXY_SET_TLS_ONLY='maybe': write 1 or 0"),
        ("LOG_BACKUPS", "few", "SPROCKETMQ_PROXY_SET_LOG_BACKUPS: 'few' is not a number"),
        ("SHOW_CONFIG", "1", "SPROCKETMQ_PROXY_SET_SHOW_CONFIG is not an option of `sprocketmq proxy`"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(capsys, monkeypatch, name, value, says):
    monkeypatch.setenv(f"SPROCKETMQ_PROXY_SET_{name}", value)
    assert main(["proxy", "--show-config"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith(f"sprocketmq: {says}")) == ("", True), err
