#!/usr/bin/env python3
"""Puts real output into README.md: every ```console block that begins with `$ inspect ...` is run again.

Run it after `cargo build --release`; the command lines stay, what is below them in the block is replaced.
"""

import re
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```console\n\$ (inspect[^\n]*)\n.*?```", re.DOTALL)


def rerun(block: re.Match) -> str:
    program, *arguments = shlex.split(block[1])
    command = [str(ROOT / "target" / "release" / program), *arguments]
    result = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"```console\n$ {block[1]}\n{result.stdout.rstrip()}\n```"


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(BLOCK.sub(rerun, readme.read_text()))


if __name__ == "__main__":
    main()
