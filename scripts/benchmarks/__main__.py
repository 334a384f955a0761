"""Runs the benchmarks; started by scripts/bench."""

import argparse
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import benchmarks
from benchmarks.core import BENCHMARKS, Bench, machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("--quick", action="store_true", help="fewer runs of each program")
    parser.add_argument("--list", action="store_true", help="names of the benchmarks")
    parser.add_argument("--bin", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    options = parser.parse_args()
    for module in sorted(pkgutil.iter_modules(benchmarks.__path__), key=lambda found: found.name):
        if module.name.startswith("bench_"):
            importlib.import_module(f"benchmarks.{module.name}")
    if options.list:
        print("\n".join(f"{name:24} {(function.__doc__ or '').splitlines()[0]}" for name, function in BENCHMARKS.items()))
        return
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"error: no benchmark `{unknown[0]}`; scripts/bench --list names them")

    bench = Bench(options.bin, options.work, options.quick)
    for name in options.names or BENCHMARKS:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        shown = len(bench.rows)
        try:
            BENCHMARKS[name](bench)
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as problem:
            print(problem, file=sys.stderr)
            bench.error(name, str(problem))
        for row in bench.rows[shown:]:
            print(f"  {row.name}: {row.ours} {row.ratio}", file=sys.stderr, flush=True)
    print(f"{machine()}; medians; `less` is how many times less inspect needs\n")
    print(bench.table())
    missed = sum(row.met is False for row in bench.rows)
    print(f"\n{sum(row.met is True for row in bench.rows)} aims met, {missed} missed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
