"""Run the commands of the README's results table from nothing, and hold each accuracy against the one stated.

    scripts/results                 every line that needs no file of one's own
    scripts/results db-pedia        those whose command has that word

The stated accuracy is the mean over the line's seeds, and the spread beside it how far another machine's may lie off.
"""

import json
import re
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "runs" / "results"
_LINE = re.compile(r"\| `(textcls [^`]+)` \| ([\d, ]+) \| [^|]+ \| [^|]+ \| (0\.\d+) ± (0\.\d+) \|")


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    command: str
    seeds: tuple[int, ...]
    accuracy: float
    spread: float

    def run(self, seed: int) -> float:
        """Train and test with a seed: the accuracy. The first seed's run is where later lines look for it."""
        arguments = [str(ROOT / ".venv/bin/textcls"), *shlex.split(self.command)[1:], "--json", "--overwrite"]
        arguments = [str(ROOT / part) if part.startswith("configs/") else part for part in arguments]
        arguments += ["--seed", str(seed)]
        if seed != self.seeds[0]:
            arguments += ["--out", f"runs/{re.sub(r'[^a-z0-9]+', '-', self.command)}-{seed}"]
        done = subprocess.run(arguments, cwd=FOLDER, check=True, stdout=subprocess.PIPE, text=True)
        return float(json.loads(done.stdout)["test"]["accuracy"])


def lines(readme: str) -> list[Line]:
    """The lines of the table that can be run."""
    return [
        Line(command, tuple(map(int, seeds.split(","))), float(accuracy), float(spread))
        for command, seeds, accuracy, spread in _LINE.findall(readme)
    ]


def main() -> None:
    """Run them all, print what came, and fail if one lies outside its spread."""
    chosen = [
        line for line in lines((ROOT / "README.md").read_text()) if set(sys.argv[1:]) <= set(line.command.split())
    ]
    FOLDER.mkdir(parents=True, exist_ok=True)
    n_off = 0
    for line in chosen:
        started = time.monotonic()
        found = [line.run(seed) for seed in line.seeds]
        minutes = (time.monotonic() - started) / 60 / len(found)
        mean = statistics.mean(found)
        off = abs(mean - line.accuracy) > line.spread
        n_off += off
        each = " ".join(f"{accuracy:.4f}" for accuracy in found)
        stated = f"stated {line.accuracy} ± {line.spread}"
        print(f"{'OFF' if off else 'ok '} {mean:.4f} ({each}), {stated}, {minutes:.0f} min: {line.command}", flush=True)
    sys.exit(1 if n_off else 0)


if __name__ == "__main__":
    main()
