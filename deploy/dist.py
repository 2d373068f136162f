"""Build the packages into ``dist/`` and check them, ``make dist``: sdist, wheel, and a bill of materials.

Each package is installed in an empty environment, where a broker is started and a message goes through it. The bill of materials
(CycloneDX) lists what the wheel brought along.
"""

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"

# What a new user does first. Nothing of the repository is in reach: the working directory is elsewhere.
FIRST_STEPS = """
from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster

with LocalCluster() as mq, sync.Producer("shop", namesrv=mq.namesrv) as producer:
    producer.send(Message("orders", b"an order"))
    assert [message.body for message in mq.messages("orders", count=1)] == [b"an order"]
"""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command, whose output is shown.

    Raises:
        subprocess.CalledProcessError: It failed.

    """
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def install(package: Path, where: Path) -> Path:
    """Install a package in a new environment, use it, and return the environment's Python."""
    venv.create(where, with_pip=True)
    python = where / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", package, cwd=where)
    run(python, "-c", FIRST_STEPS, cwd=where)
    run(where / "bin/sprocketmq", "--version", cwd=where)
    return python


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    try:
        run(sys.executable, "-m", "build", "--outdir", DIST)
        packages = sorted(DIST.iterdir())
        run(sys.executable, "-m", "twine", "check", "--strict", *packages)
        run(Path(sys.executable).with_name("check-wheel-contents"), *(package for package in packages if package.suffix == ".whl"))
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
