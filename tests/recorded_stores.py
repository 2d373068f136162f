"""The stores of `tests/fixtures/stores`, which Apache RocketMQ 5.5.0 wrote."""

import tarfile
from pathlib import Path

STORES = Path(__file__).parent / "fixtures/stores"


def unpack(name: str, to: Path) -> Path:
    """Unpack a recorded store below a directory, and return the store's own."""
    with tarfile.open(STORES / f"{name}.tar.gz") as archive:
        # Python before 3.11.4 has neither filters nor the argument that names one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(to)
    return to / "store"
