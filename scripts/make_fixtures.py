#!/usr/bin/env python3
"""Makes the checkpoints in fixtures/ anew, each with the truth about it as Python's torch tells it.

Needed only to change the fixtures. Run it with the full set-up:

    scripts/setup --full && PYTHONPATH=.libtorch python3 scripts/make_fixtures.py [NAME...]

NAME limits the run to groups: networks, models, files, hostile, several, numbers, train, exported, distributed, package.
The same torch makes the same bytes, so `git status` is clean afterwards unless something really changed. See fixtures/README.md for what the truth holds.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from fixture_maker import distributed, exported, files, hostile, models, networks, numbers, package, several, training

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
TORCH_VERSION = "2.11.0"
GROUPS = {
    "networks": networks.make,
    "models": models.make,
    "files": files.make,
    "hostile": hostile.make,
    "several": several.make,
    "numbers": numbers.make,
    "train": training.make,
    "exported": exported.make,
    "distributed": distributed.make,
    "package": package.make,
}
# Not made here: kept by the fuzzers.
OTHERS = {"corpus"}


def main() -> None:
    if torch.__version__.split("+")[0] != TORCH_VERSION:
        sys.exit(f"error: torch {TORCH_VERSION} is needed, found {torch.__version__}")
    wanted = sys.argv[1:] or list(GROUPS)
    for name in wanted:
        if name not in GROUPS:
            sys.exit(f"error: no group `{name}`; there are {', '.join(GROUPS)}")
    FIXTURES.mkdir(exist_ok=True)
    if os.environ.get("PYTHONHASHSEED") == "0" and len(wanted) == 1:
        make_group(wanted[0])
        return
    # The order of sets and the modules compiled before show in TorchScript code: a fresh process for every group.
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in wanted:
        print(f"making {name}", file=sys.stderr)
        subprocess.run([sys.executable, "-W", "ignore", __file__, name], env=environment, check=True)


def make_group(name: str) -> None:
    torch.set_num_threads(1)
    descriptions = {path: text for path, text in read_descriptions().items() if text["group"] != name}
    for path, text in GROUPS[name](FIXTURES).items():
        descriptions[path] = {"group": name, "description": text}
    write_manifest(descriptions)


def read_descriptions() -> dict:
    manifest = FIXTURES / "MANIFEST.json"
    if not manifest.exists():
        return {}
    entries = json.loads(manifest.read_text())["files"]
    return {entry["path"]: {"group": entry["group"], "description": entry["description"]} for entry in entries}


def write_manifest(descriptions: dict) -> None:
    described = set(descriptions) | {truth_name(path) for path in descriptions}
    for path in sorted(FIXTURES.rglob("*")):
        name = path.relative_to(FIXTURES).as_posix()
        if path.is_file() and name.split("/")[0] not in OTHERS | {"MANIFEST.json", "README.md"} and name not in described:
            path.unlink()
    rows = []
    for path in sorted(descriptions):
        truth = FIXTURES / truth_name(path)
        rows.append(
            {
                "path": path,
                "group": descriptions[path]["group"],
                "description": descriptions[path]["description"],
                "bytes": (FIXTURES / path).stat().st_size,
                "sha256": sha256(FIXTURES / path),
                "truth": truth_name(path) if truth.exists() else None,
                "truth_sha256": sha256(truth) if truth.exists() else None,
            }
        )
    lines = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    text = f'{{\n  "torch_version": "{TORCH_VERSION}",\n  "files": [\n    {lines}\n  ]\n}}\n'
    (FIXTURES / "MANIFEST.json").write_text(text)
    total = sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file())
    print(f"{len(rows)} fixtures, {total} bytes with everything in fixtures/", file=sys.stderr)


def truth_name(path: str) -> str:
    return path + ".truth.json"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
