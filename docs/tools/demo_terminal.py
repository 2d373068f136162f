"""Draw what the demo prints in a terminal: ``python -m docs.tools.demo_terminal`` runs it and writes docs/images/demo-terminal.svg."""

import io
import re
import sys
import tempfile
from pathlib import Path

from docs.tools.site import ROOT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from sprocketmq.demo.report import show
from sprocketmq.demo.run import DemoSettings, run_demo

PICTURE = ROOT / "docs" / "images" / "demo-terminal.svg"
WIDTH = 116
# The template loads fonts from the network, which no page of ours does.
FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def main() -> int:
    """Run the demo; return 1, and leave the picture as it is, when one of its checks fails."""
    # Not a terminal: the progress bars are written once, when they are complete.
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=False)
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "demo-output"
        console.print("[bold green]$[/] make demo")
        outcome = run_demo(DemoSettings(output), console=console)
        show(console, outcome)
        if not outcome.passed:
            print("the demo failed, the picture is unchanged")
            return 1
        svg = console.export_svg(title="make demo", theme=MONOKAI, unique_id="demo")
    svg = FONT.sub("", svg.replace(f"{output}", "demo-output")).replace("Fira Code", "ui-monospace")
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
