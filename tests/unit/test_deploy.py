"""The files of ``deploy/``: pages show them as they are, and the command lines in them start what they promise."""

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from sprocketmq.events import quoted

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMMAND = str(Path(sys.executable).with_name("sprocketmq"))
# The files beside the folders build the packages.
FILES = [path for path in sorted(DEPLOY.glob("*/*")) if path.is_file() and path.suffix not in (".py", ".pyc")]
KUBERNETES = [one for name in ("sprocketmq", "dashboard") for one in yaml.safe_load_all((DEPLOY / f"kubernetes/{name}.yaml").read_text())]


def directive(name):
    """Return the arguments of the last ``name [...]`` of the Dockerfile, those of an image that is run."""
    text = (DEPLOY / "docker/Dockerfile").read_text(encoding="utf-8")
    return json.loads(re.findall(rf"^{name}\b.*?(\[.*\])$", text, re.MULTILINE)[-1])


def container(kind):
    (found,) = (one["spec"]["template"]["spec"]["containers"][0] for one in KUBERNETES if one["kind"] == kind)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_a_page_shows_the_file_as_it_is(file):
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"# {file.relative_to(ROOT)}\n")
    shown = [page.name for page in sorted((ROOT / "docs/guide").glob("*.md")) if f"\n{text}```\n" in page.read_text(encoding="utf-8")]
    assert len(shown) == 2, shown  # the English page and the Chinese one


class Server:
    """One that was started from a file of ``deploy/``, on free ports, with its directories below a temporary one."""

    def __init__(self, arguments, home, *more):
        self.home = home
        self.process = subprocess.Popen(
            [COMMAND, *self.below(arguments), *more, "--stop-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"HOME": str(home)},
            text=True,
        )
        self.ready = self.process.stdout.readline()

    def below(self, arguments):
        return [re.sub(r"(^|=)(/data|/etc|/var)(?=/|$)", rf"\g<1>{self.home}\g<2>", one) for one in arguments]

    @property
    def namesrv(self):
        return "127.0.0.1:" + re.search(r"namesrv=\S+?:(\d+)", self.ready)[1]

    def run(self, *arguments):
        return subprocess.run([COMMAND, *self.below(arguments)], capture_output=True, text=True, timeout=60, check=False)

    def stop(self):
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def serve(tmp_path):
    running = []

    def start(arguments, *more):
        running.append(Server(arguments, tmp_path, *more))
        return running[-1]

    yield start
    for server in running:
        if server.process.poll() is None:
            server.stop()
        server.process.stdout.close()


ANY_PORT = ("--port", "0", "--namesrv-port", "0", "--host", "127.0.0.1")


def test_the_image_serves_and_its_health_check_says_so(serve):
    assert directive("ENTRYPOINT") == ["sprocketmq"]
    server = serve(directive("CMD"), *ANY_PORT)
    assert "store=" in server.ready
    program, *check = directive("HEALTHCHECK")
    assert program == "sprocketmq"
    healthy = server.run(*(server.namesrv if one == "127.0.0.1:9876" else one for one in check))
    assert healthy.returncode == 0, healthy.stderr
    assert server.stop()[0] == 0
    assert server.run(*(server.namesrv if one == "127.0.0.1:9876" else one for one in check)).returncode != 0


def test_the_composed_service_serves(serve):
    service = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())["services"]["mq"]
    assert "store=" in serve(service["command"], *ANY_PORT, "--advertise", "127.0.0.1").ready
    assert (ROOT / "deploy/docker" / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_the_unit_of_systemd_serves(serve, tmp_path):
    unit = configparser.ConfigParser(strict=False, comment_prefixes="#")
    unit.optionxform = str
    unit.read(DEPLOY / "systemd/sprocketmq.service")
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "sprocketmq"
    settings = (DEPLOY / "systemd/broker.toml").read_text()
    # Both directories are the ones that systemd makes for the service.
    assert tomllib.loads(settings)["store"].startswith(f"/var/lib/{unit['Service']['StateDirectory']}/")
    assert tomllib.loads(settings)["log_file"].startswith(f"/var/log/{unit['Service']['LogsDirectory']}/")
    (tmp_path / "etc/sprocketmq").mkdir(parents=True)
    (tmp_path / "var/log/sprocketmq").mkdir(parents=True)
    (tmp_path / "etc/sprocketmq/broker.toml").write_text(settings.replace('"/var', f'"{json.dumps(str(tmp_path))[1:-1]}/var'))
    server = serve(arguments, *ANY_PORT)
    assert f"store={quoted(tmp_path / 'var/lib/sprocketmq/broker-a')}" in server.ready
    assert server.stop()[0] == 0
    assert (tmp_path / "var/log/sprocketmq/broker.log").read_text()


def test_the_pod_makes_its_certificates_and_serves_with_them(serve, tmp_path):
    (tmp_path / "data").mkdir()
    (stateful,) = (one for one in KUBERNETES if one["kind"] == "StatefulSet")
    (init,) = stateful["spec"]["template"]["spec"]["initContainers"]
    here = {"/data": f"{tmp_path}/data", "sprocketmq": COMMAND}
    shell = re.sub("/data|sprocketmq", lambda found: shlex.quote(here[found[0]]), " ".join(init["command"][2].split()))
    for _ in range(2):  # a restart of the pod keeps what the first start made
        made = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
        assert made.returncode == 0, made.stderr
    server = serve(
        container("StatefulSet")["args"], *ANY_PORT, "--metrics", "0", "--set", "metrics_host=127.0.0.1", "--advertise", "127.0.0.1"
    )
    assert "tls=enforcing access_control=on" in server.ready
    asked = server.run("cluster", "--namesrv", server.namesrv, "--secure", "/data/secure")
    assert asked.returncode == 0, asked.stderr
    assert server.stop()[0] == 0


def test_the_pod_and_its_service_agree():
    (service,) = (one for one in KUBERNETES if one["kind"] == "Service")
    (stateful,) = (one for one in KUBERNETES if one["kind"] == "StatefulSet")
    template = stateful["spec"]["template"]
    assert service["spec"]["selector"] == template["metadata"]["labels"] == stateful["spec"]["selector"]["matchLabels"]
    assert service["metadata"]["name"] == stateful["spec"]["serviceName"]
    ports = {port["name"]: port["containerPort"] for port in container("StatefulSet")["ports"]}
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    probes = [probe["tcpSocket"]["port"] for name, probe in container("StatefulSet").items() if name.endswith("Probe")]
    assert len(probes) == 3
    assert set(probes) <= ports.keys()
    assert template["spec"]["securityContext"]["runAsNonRoot"]


def test_the_dashboard_of_a_pod_starts(serve, rocketmq):
    arguments = [one.replace("rocketmq-namesrv:9876", rocketmq.namesrv) for one in container("Deployment")["args"]]
    assert serve(arguments, "--port", "0").ready.startswith("ready dashboard=http://127.0.0.1:")


def test_what_the_image_needs_is_not_left_out_of_its_context():
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    page = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["path"]
    assert {"src", "pyproject.toml", "README.md", page, *project["project"]["license-files"]} <= kept
