"""``sprocketmq verify``: check a store and report what is wrong, where, and the remedy."""

import os
from dataclasses import asdict

from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK
from sprocketmq.cli.output import clean, plural, print_json
from sprocketmq.cli.progress import ByteProgress
from sprocketmq.storage.inspect.items import NotAStoreFile
from sprocketmq.storage.inspect.verification import VerifyReport, verify


def run(directory: str, *, index: bool, as_json: bool) -> int:
    """Print the report and return 0 if it has only notes, otherwise 1. Raises NotAStoreFile when the store cannot be checked."""
    root = os.path.abspath(directory)
    if not os.path.isdir(root):
        reason = "this is a file; verify takes a store's directory" if os.path.exists(root) else "there is no such directory"
        raise NotAStoreFile(root, reason)
    try:
        with ByteProgress("verifying") as progress:
            report = verify(root, progress=progress, index=index)
    except OSError as e:
        raise NotAStoreFile(str(e.filename or root), f"cannot be read: {e.strerror or e}") from e
    if as_json:
        print_json({**asdict(report), "ok": report.ok})
    else:
        _print(report)
    return EXIT_OK if report.ok else EXIT_FAILURE


def _print(report: VerifyReport) -> None:
    for finding in report.findings:
        where = finding.path + (f", byte {finding.offset}" if finding.offset is not None else "")
        print(f"{finding.severity}: {clean(where)}" if where else f"{finding.severity}:")
        print(f"    {clean(finding.what)}")
        if finding.repair:
            print(f"    next: {clean(finding.repair)}")
    print(
        f"{report.root}: log {report.log_start} to {report.log_end}, {plural(report.records, 'record')}, {plural(report.queues, 'queue')}, "
        f"{report.index_entries:,} index entries, {report.log_bytes:,} bytes in {report.elapsed_s:.1f} s"
    )
    if report.ok and not report.notes:
        print("everything is in order")
    else:
        verdict = "in order" if report.ok else "NOT in order"
        print(f"{verdict}: {plural(report.errors, 'error')}, {plural(report.warnings, 'warning')}, {plural(report.notes, 'note')}")
