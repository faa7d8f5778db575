"""Time every contender on the same rows, in turns, each in a process of its own: a table, and JSON.

    scripts/bench                                     both data sets, training and inference
    scripts/bench --datasets ag-news --tasks train
    scripts/bench --profile train                     where textcls's time goes, operator by operator
    scripts/bench --scaling                           how the rate grows with batch size, length and width

Only ratios between the lines of one table mean much: a machine's speed changes from one minute to the next, which is
why the contenders take turns and the median of their repeats counts.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

SCALING: dict[str, list[dict[str, dict[str, Any]]]] = {
    "rows a batch": [{"batch": {"size": size}} for size in (1, 8, 32, 128)],
    "tokens a row": [{"batch": {"max_length": length}} for length in (16, 64, 128, 256)],
    "d_model": [
        {"transformer": {"d_model": width, "d_ff": 4 * width, "n_heads": width // 32}} for width in (64, 128, 256, 512)
    ],
}
ROWS = {"ag-news": {"train": 2_048, "infer": 4_096}, "db-pedia": {"train": 768, "infer": 1_024}}


def main() -> None:
    """Read the arguments; either orchestrate, or be one of the processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--datasets", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--tasks", nargs="+", default=["train", "infer"], choices=["train", "infer"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="contenders whose names begin so")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/speed.json"))
    parser.add_argument("--profile", choices=["train", "infer"])
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("TASK", "DATASET", "CONTENDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
    elif options.profile:
        for dataset in options.datasets:
            profile(options.profile, dataset)
    elif options.scaling:
        scaling(options.repeats)
    else:
        found = [compare(t, d, options.repeats, options.only) for d in options.datasets for t in options.tasks]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"machine": machine(), "tables": found}, indent=2) + "\n")
        print(f"\nwritten: {options.out}")


def compare(task: str, dataset: str, repeats: int, only: list[str] | None) -> dict[str, Any]:
    """Run all contenders of a task in turns, and print their table."""
    names = json.loads(_child("--one", task, dataset, "?"))["contenders"]
    names = [name for name in names if not only or name.startswith(tuple(only))]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            runs[name].append(json.loads(_child("--one", task, dataset, name)))
            print(f"{dataset} {task}: {name}: {runs[name][-1]['rows_per_second']:.1f} rows/s", file=sys.stderr)
    lines = [
        {
            "contender": name,
            "rows_per_second": statistics.median(run["rows_per_second"] for run in results),
            "all_rows_per_second": [run["rows_per_second"] for run in results],
            "peak_memory_mib": max(run["peak_memory_mib"] for run in results),
        }
        for name, results in runs.items()
    ]
    _print_table(f"{dataset}, {task}, {ROWS[dataset][task]:,} rows", lines)
    return {"dataset": dataset, "task": task, "rows": ROWS[dataset][task], "lines": lines}


def measure(task: str, dataset: str, name: str) -> dict[str, Any]:
    """In a process of its own: the rate of one contender, and the process's peak memory."""
    from contenders import INFERENCE, TRAINING, Work

    from textcls.runtime import peak_memory_mib

    contenders = TRAINING if task == "train" else INFERENCE
    if name == "?":
        return {"contenders": list(contenders)}
    rows, seconds = contenders[name](Work(dataset, ROWS[dataset][task]))
    return {"rows_per_second": rows / seconds, "peak_memory_mib": peak_memory_mib()}


def profile(task: str, dataset: str) -> None:
    """Print where the time of textcls goes, by operator."""
    import torch
    from contenders import INFERENCE, TRAINING, Work

    work = Work(dataset, ROWS[dataset][task])
    run = (TRAINING if task == "train" else INFERENCE)["textcls"]
    run(work)  # once before, so that what is done once is not counted
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run(work)
    print(f"{dataset}, {task}")
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50))


def scaling(repeats: int) -> None:
    """Print training's rate as one size at a time is changed, beside that of its matrix products alone.

    All else is as in AG News' recipe, but that every row is padded to 64 tokens, so that all rows are the same work.
    """
    from contenders import Work, train_matrix_products, train_textcls

    print("| | rows/s | tokens/s | of the matrix products' rate |\n| --- | --- | --- | --- |")
    for name, settings in SCALING.items():
        for changes in settings:
            (keys,) = changes.values()
            batch = {"padding": "fixed", "max_length": 64} | changes.get("batch", {})
            work = Work("ag-news", 512, {**changes, "batch": batch})
            rates = [[n / s for n, s in (train_textcls(work), train_matrix_products(work))] for _ in range(repeats)]
            rate, floor = (statistics.median(column) for column in zip(*rates, strict=True))
            tokens = rate * work.config.batch.max_length
            print(
                f"| {next(iter(keys.values()))} {name} | {rate:,.0f} | {tokens:,.0f} | {rate / floor:.2f} |", flush=True
            )


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor())


def _child(*arguments: str) -> str:
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def _print_table(title: str, lines: list[dict[str, Any]]) -> None:
    ours = next((line["rows_per_second"] for line in lines if line["contender"] == "textcls"), None)
    print(f"\n{title}\n")
    print("| | rows/s | lowest to highest | textcls is | peak memory, MiB |\n| --- | --- | --- | --- | --- |")
    for line in lines:
        rate, every = line["rows_per_second"], line["all_rows_per_second"]
        ratio = f"{ours / rate:.2f} times as fast" if ours else ""
        print(
            f"| {line['contender']} | {rate:,.1f} | {min(every):,.1f} to {max(every):,.1f} | {ratio} "
            f"| {line['peak_memory_mib']:,.0f} |"
        )


if __name__ == "__main__":
    main()
