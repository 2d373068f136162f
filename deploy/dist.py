"""Build the packages into ``dist/`` and check them, ``make dist``: sdist and wheel of both distributions, and bills of materials.

``sprocketmq`` has everything; ``sprocketmq-client`` the parts that ``client.toml`` names. Each package is installed in an empty environment
and used there: a broker is started and a message goes through it, at the client's by clients of its own. A bill of materials (CycloneDX)
lists what a wheel brought along.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CLIENT = ROOT / "deploy/client.toml"
ABSENT = ROOT / "deploy/absent.py"
# What an environment with the wheel of sprocketmq-client may add to an empty one, in bytes.
CLIENT_LIMIT = 25_000_000

# What a new user does first. Nothing of the repository is in reach: the working directory is elsewhere.
FIRST_STEPS = """
from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster

with LocalCluster() as mq, sync.Producer("shop", namesrv=mq.namesrv) as producer:
    producer.send(Message("orders", b"an order"))
    assert [message.body for message in mq.messages("orders", count=1)] == [b"an order"]
"""


# The same for the clients alone; the nameserver's address is the argument. What is not there says how to install it.
CLIENT_STEPS = """
import sys
from sprocketmq import Message, sync
from sprocketmq.errors import PartNotInstalled

with sync.Producer("shop", namesrv=sys.argv[1]) as producer:
    producer.send(Message("orders", b"an order"))
with sync.PullConsumer("billing", namesrv=sys.argv[1]) as consumer:
    found = [message.body for queue in consumer.queues("orders") for message in consumer.pull(queue, 0).messages]
assert found == [b"an order"], found
try:
    import sprocketmq.embedded
except PartNotInstalled as e:
    assert str(e).endswith("pip uninstall -y sprocketmq-client && pip install sprocketmq"), e
else:
    raise AssertionError("sprocketmq.embedded is in sprocketmq-client")
"""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command, whose output is shown.

    Raises:
        subprocess.CalledProcessError: It failed.

    """
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def client_sources(where: Path) -> Path:
    """Make the directory that sprocketmq-client is built from, and return it."""
    where.mkdir()
    shutil.copy(CLIENT, where / "pyproject.toml")
    (where / "deploy").mkdir()
    for name in ("README.md", "LICENSE", "deploy/package_page.py"):
        shutil.copy(ROOT / name, where / name)
    parts = tomllib.loads(CLIENT.read_text(encoding="utf-8"))["tool"]["sprocketmq"]["parts"]
    package = where / "src/sprocketmq"
    package.mkdir(parents=True)
    for path in (ROOT / "src/sprocketmq").iterdir():
        if path.is_file():
            shutil.copy(path, package)
        elif path.name in parts:
            shutil.copytree(path, package / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (path / "__init__.py").exists():
            (package / path.name).mkdir()
            text = ABSENT.read_text(encoding="utf-8").replace("PART", f"sprocketmq.{path.name}", 1)
            (package / path.name / "__init__.py").write_text(text, encoding="utf-8")
    return where


def is_client(package: Path) -> bool:
    return package.name.startswith("sprocketmq_client-")


def size(where: Path) -> int:
    """Return how many bytes the files below a directory have."""
    return sum(path.lstat().st_size for path in where.rglob("*") if path.is_file() and not path.is_symlink())


def use(python: Path) -> None:
    """Take the first steps with ``sprocketmq``."""
    run(python, "-I", "-c", FIRST_STEPS, cwd=python.parent)
    run(python.with_name("sprocketmq"), "--version", cwd=python.parent)


def use_client(python: Path) -> None:
    """Take the first steps with ``sprocketmq-client``, at a cluster of the repository."""
    from sprocketmq.embedded import LocalCluster

    with LocalCluster() as mq:
        run(python, "-I", "-c", CLIENT_STEPS, mq.namesrv, cwd=python.parent)


def install(package: Path, where: Path) -> Path:
    """Install a package in a new environment, use it, and return the environment's Python."""
    venv.create(where, with_pip=True)
    before = size(where)
    python = where / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", package, cwd=where)
    added = size(where) - before
    print(f"{package.name}: {added / 1e6:.1f} MB installed", flush=True)
    if not is_client(package):
        use(python)
    elif added < CLIENT_LIMIT:
        use_client(python)
    else:
        sys.exit(f"{package.name} adds {added:,} bytes to an environment, more than {CLIENT_LIMIT:,}")
    return python


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    try:
        run(sys.executable, "-m", "build", "--outdir", DIST)
        with tempfile.TemporaryDirectory(prefix="sprocketmq-client-") as where:
            run(sys.executable, "-m", "build", "--outdir", DIST, client_sources(Path(where) / "client"))
        packages = sorted(DIST.iterdir())
        run(sys.executable, "-m", "twine", "check", "--strict", *packages)
        for wheel in DIST.glob("*.whl"):
            only = ["--toplevel", "sprocketmq"] if is_client(wheel) else []
            run(Path(sys.executable).with_name("check-wheel-contents"), *only, wheel)
        for package in packages:
            with tempfile.TemporaryDirectory(prefix="sprocketmq-dist-") as where:
                python = install(package, Path(where))
                if package.suffix == ".whl":
                    bill = DIST / f"{package.stem}.cdx.json"
                    run(Path(sys.executable).with_name("cyclonedx-py"), "environment", "--output-file", bill, python)
    except subprocess.CalledProcessError as e:
        return e.returncode
    print(*sorted(path.name for path in DIST.iterdir()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
