"""Running programs side by side, and the table of ratios."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BENCHMARKS: dict[str, Callable[["Bench"], None]] = {}


def benchmark(function: Callable[["Bench"], None]) -> Callable[["Bench"], None]:
    """Adds a function to what `scripts/bench` runs, under its own name."""
    BENCHMARKS[function.__name__] = function
    return function


@dataclass
class Measured:
    """Medians over the runs of one program."""

    wall_ms: float
    cpu_ms: float
    rss_mb: float


@dataclass
class Row:
    name: str
    ours: str
    other: str
    ratio: str
    aim: str
    met: bool | None


@dataclass
class Bench:
    """What a benchmark gets: where things are, how to measure, and the table."""

    bin: Path
    work: Path
    quick: bool
    rows: list[Row] = field(default_factory=list)

    @property
    def inspect(self) -> str:
        return str(self.bin / "inspect")

    def python(self, code: str) -> list[str]:
        return [sys.executable, "-W", "ignore", "-c", code]

    def made(self, name: str, code: str) -> Path:
        """A file in the work folder, made once by Python code that writes to `path`."""
        path = self.work / name
        if not path.exists():
            print(f"making {name}", file=sys.stderr, flush=True)
            partial = path.with_name("partial-" + name)
            # A file of its own: torch.jit.script reads the source of what it compiles.
            maker = path.with_name(f"make-{Path(name).stem}.py")
            maker.write_text(f"path = {str(partial)!r}\n{code}")
            subprocess.run([sys.executable, "-W", "ignore", str(maker)], check=True)
            partial.rename(path)
        return path

    def report(self, *arguments: str) -> dict:
        """The JSON report of `inspect`: looked at before measuring, since a program that fails early is fast."""
        command = [self.inspect, *arguments, "--format", "json"]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        try:
            return json.loads(result.stdout)
        except json.JSONDecodeError:
            problem = result.stderr.decode(errors="replace").strip() or "no report on stdout"
            raise RuntimeError(f"inspect ended with {result.returncode}: {problem} (`{' '.join(command)}`)") from None

    def compare(self, commands: dict[str, Sequence[str]], runs: int, exits: Sequence[int] = (0,)) -> dict[str, Measured]:
        """Runs every command once unmeasured, then all of them by turns, and gives the medians."""
        if self.quick:
            runs = max(3, runs // 5)
        found: dict[str, list[tuple]] = {name: [] for name in commands}
        for turn in range(runs + 1):
            for name, command in commands.items():
                result = self._once(command, exits)
                if turn > 0:
                    found[name].append(result)
        return {name: Measured(*(statistics.median(column) for column in zip(*rows))) for name, rows in found.items()}

    def _once(self, command: Sequence[str], exits: Sequence[int]) -> tuple[float, float, float]:
        with tempfile.NamedTemporaryFile("r") as out:
            arguments = [str(self.work / "measure"), out.name, *command]
            result = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            wall, cpu, rss, status = (int(value) for value in out.read().split())
        if status not in exits:
            tail = result.stderr.decode(errors="replace").strip().splitlines()[-5:]
            raise RuntimeError(f"`{' '.join(command)[:200]}` ended with {status}: " + "\n".join(tail))
        return wall / 1e6, cpu / 1e6, rss * 1024 / 1e6

    def time(self, name: str, ours: Measured, other: Measured, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """A line for wall time: how many times faster than the other (`at_least`), or slower at most."""
        self._ratio(name + ", time", ours.wall_ms, other.wall_ms, milliseconds, at_least, at_most)

    def memory(self, name: str, ours: Measured, other: Measured, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """A line for peak RSS of the largest process."""
        self._ratio(name + ", peak RSS", ours.rss_mb, other.rss_mb, megabytes, at_least, at_most)

    def limit(self, name: str, value: float, limit: float, unit: str) -> None:
        """A line for a figure with a limit of its own."""
        self.rows.append(Row(name, f"{value:.1f} {unit}", "", "", f"<= {limit:g} {unit}", value <= limit))

    def error(self, name: str, problem: str) -> None:
        """A line for what could not be measured."""
        self.rows.append(Row(name, "failed", "", "", problem.splitlines()[0][:60], False))

    def _ratio(self, name: str, ours: float, other: float, show: Callable[[float], str], at_least: float | None, at_most: float | None) -> None:
        if at_most is not None:
            ratio, aim, met = ours / other, f"<= {at_most:g}x", ours / other <= at_most
        else:
            ratio = other / ours
            aim = f">= {at_least:g}x less" if at_least else ""
            met = ratio >= at_least if at_least else None
        text = f"{ratio:.2f}x" if at_most is not None else f"{ratio:.1f}x less"
        self.rows.append(Row(name, show(ours), show(other), text, aim, met))

    def table(self) -> str:
        header = Row("what", "inspect", "other", "ratio", "aim", None)
        words = {True: "met", False: "MISSED", None: ""}
        lines = [[row.name, row.ours, row.other, row.ratio, row.aim, words[row.met]] for row in [header, *self.rows]]
        widths = [max(len(line[column]) for line in lines) for column in range(6)]
        return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def milliseconds(value: float) -> str:
    return f"{value:.2f} ms" if value < 100 else f"{value:.0f} ms"


def megabytes(value: float) -> str:
    return f"{value:.1f} MB"


def machine() -> str:
    model = "unknown CPU"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} cores"
