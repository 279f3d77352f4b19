"""Back-tests the rules on published runs whose trouble is known, and prints the tables of docs/backtests.md.

The runs and their labels lie outside the project (``make backtest`` names the folder); how scores are counted stands in
the README there. The last line is one JSON object. Exit status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

RULES_OF: Final = {
    "nan_loss": ("nonfinite_loss", "zero_loss"),
    "nan_eval": ("nonfinite_eval_loss",),
    "nan_grad": ("nonfinite_gradient",),
    "zero_loss_collapse": ("zero_loss", "nonfinite_loss"),
    "divergence": ("divergence",),
    "exploding_grad": ("exploding_gradient",),
    "overfit": ("overfitting",),
    "plateau": ("plateau",),
    "spike_recovered": ("loss_spike",),
}
"""A label to the rules of which a finding says the same."""

RECALL: Final = {
    "nan_loss": 1.0,
    "nan_eval": 1.0,
    "nan_grad": 1.0,
    "zero_loss_collapse": 1.0,
    "divergence": 0.9,
    "exploding_grad": 0.8,
    "overfit": 0.8,
    "plateau": 0.8,
}
DIVERGENCE_DELAY: Final = 5.0
FALSE_ALARMS: Final = 0.02
HEADROOM_SEEN: Final = 6 / 8

_AT_ONCE: Final = frozenset({"nan_loss", "nan_eval", "nan_grad", "zero_loss_collapse"})
"""Labels that must be found at the very first value that shows them."""

_BAD: Final = frozenset({"warning", "critical"})
_GROWTH: Final = frozenset({"memory_growth", "oom_forecast"})
_HEADROOM: Final = frozenset({"memory_headroom", "oom_forecast"})
_CALM: Final = frozenset({"flat", "step_then_flat", "sawtooth", "other"})

_BEGIN: Final = "<!-- written by make backtest -->"
_END: Final = "<!-- end -->"


class Found(NamedTuple):
    """Whether a labelled trouble was found.

    Attributes:
        row: The run's row in the index.
        label: The trouble.
        found: Whether a finding of a matching rule was reported at its onset or later.
        delay: Logged points from the onset to the finding; NaN when not found.
        alarmed: Whether one of them was a warning or worse.
    """

    row: dict[str, str]
    label: str
    found: bool
    delay: float
    alarmed: bool


def backtest(files: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """Runs ``trainwatch backtest --format json``, as anybody would, and returns the findings of each file."""
    command = [sys.executable, "-m", "trainwatch", "backtest", "--format", "json", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        told = json.loads(line)
        if "error" in told:
            raise SystemExit(f"could not be read: {told['error']}")
        found[Path(told["file"]).name] = told["findings"]
    return found


def index(path: Path) -> list[dict[str, str]]:
    """Reads an index."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table as Markdown."""
    sys.stdout.write("\n| " + " | ".join(header) + " |\n|" + "---|" * len(header) + "\n")
    for row in rows:
        sys.stdout.write("| " + " | ".join(str(cell) for cell in row) + " |\n")


def share(part: float, whole: float) -> str:
    """Says a share in percent."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


# -- curves ------------------------------------------------------------------------------------------------------------


def entries_of(path: Path) -> list[dict[str, Any]]:
    """Reads a run's logged entries, independently of what is tested."""
    text = path.read_text("utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    history: list[dict[str, Any]] = json.loads(text)["log_history"]
    return history


def onset_of(entries: Sequence[dict[str, Any]], label: str, step: float) -> int:
    """Returns the index of the first entry that shows a trouble.

    For what is not finite: the first value that is not. The index's steps may be those of the file's own lines, so for
    the rest the first entry at or behind the onset's step.
    """
    keys = {"nan_loss": "loss", "nan_eval": "eval_loss", "nan_grad": "grad_norm"}
    if label in keys:
        for point, entry in enumerate(entries):
            value = entry.get(keys[label])
            if isinstance(value, float) and not math.isfinite(value):
                return point
    if label in ("nan_loss", "zero_loss_collapse"):
        zeros = [point for point, entry in enumerate(entries) if entry.get("loss") == 0.0]
        runs = [point for point in zeros if point + 1 in zeros and point + 2 in zeros]
        if runs:
            return runs[0]
    for point, entry in enumerate(entries):
        if float(entry.get("step", entry.get("current_steps", point))) >= step:
            return point
    return len(entries) - 1


def judge_curves(corpus: Path) -> tuple[list[Found], list[tuple[dict[str, str], list[str]]]]:
    """Returns what was found of each label, and the healthy runs with the rules that gave a false alarm on them."""
    rows = index(corpus / "curves.csv")
    findings = backtest([corpus / "curves" / row["file"] for row in rows])
    found: list[Found] = []
    healthy: list[tuple[dict[str, str], list[str]]] = []
    for row in rows:
        labels = row["labels"].split("|")
        if labels == ["healthy"]:
            alarms = {one["rule"] for one in findings[row["file"]] if one["severity"] in _BAD}
            healthy.append((row, sorted(alarms)))
            continue
        steps = row["onset_steps"].split("|")
        for label, step in zip(labels, steps + [""] * len(labels), strict=False):
            if label not in RULES_OF:
                continue
            entries = entries_of(corpus / "curves" / row["file"])
            onset = onset_of(entries, label, float(step) if step else 0.0)
            matching = [
                one
                for one in findings[row["file"]]
                if one["rule"] in RULES_OF[label] and one["state"] == "firing" and one["point"] >= onset
            ]
            delay = min(one["point"] for one in matching) - onset if matching else math.nan
            alarmed = any(one["severity"] in _BAD for one in matching)
            found.append(Found(row, label, bool(matching), delay, alarmed))
    return found, healthy


def report_curves(found: list[Found], healthy: list[tuple[dict[str, str], list[str]]]) -> tuple[Any, list[str]]:
    """Prints what came of the curves; returns it as plain values, and the targets that are missed."""
    by_label: defaultdict[str, list[Found]] = defaultdict(list)
    for one in found:
        by_label[one.label].append(one)
    lines, missed = [], []
    plain: dict[str, Any] = {}
    for label in RULES_OF:
        runs = by_label[label]
        if not runs:
            continue
        hits = [one for one in runs if one.found]
        recall = len(hits) / len(runs)
        weight = sum(float(one.row["repo_weight"]) for one in runs)
        weighted = sum(float(one.row["repo_weight"]) for one in hits) / weight
        delay = statistics.median(one.delay for one in hits) if hits else math.nan
        late = [one for one in hits if label in _AT_ONCE and one.delay > 0]
        plain[label] = {
            "runs": len(runs),
            "repositories": len({one.row["repo"] for one in runs}),
            "recall": round(recall, 4),
            "recall_by_repository": round(weighted, 4),
            "alarmed": sum(one.alarmed for one in runs),
            "median_delay": None if math.isnan(delay) else delay,
        }
        target = RECALL.get(label)
        if target is not None and min(recall, weighted) < target:
            missed.append(f"{label}: recall {recall:.2f} of the runs, {weighted:.2f} by repository; wanted {target}")
        if late:
            missed.append(f"{label}: {len(late)} not at the first value that shows it, {late[0].row['file']}")
        if label == "divergence" and not delay <= DIVERGENCE_DELAY:
            missed.append(f"divergence: median delay {delay} points; wanted at most {DIVERGENCE_DELAY:.0f}")
        lines.append(
            (
                f"`{label}`",
                " or ".join(f"`{rule}`" for rule in RULES_OF[label]),
                len(runs),
                plain[label]["repositories"],
                share(len(hits), len(runs)),
                f"{100 * weighted:.1f} %",
                share(sum(one.alarmed for one in runs), len(runs)),
                "–" if math.isnan(delay) else f"{delay:g}",
                "–" if target is None else f"{100 * target:.0f} %",
            )
        )
    header = (
        "Label",
        "Rule",
        "Runs",
        "Repositories",
        "Found",
        "by repository",
        "as a warning or worse",
        "Median delay, points",
        "Target",
    )
    table(header, lines)
    transient = [one for one in by_label["nan_grad"] if "persistent" not in one.row["label_notes"]]
    warned = [one for one in transient if one.alarmed]
    sys.stdout.write(
        f"\nRuns of which the non-finite gradients were transient: {len(transient)}; with a warning about them: "
        f"{len(warned)}. Target: none.\n"
    )
    if warned:
        missed.append(f"nan_grad: a warning about a transient one, {warned[0].row['file']}")
    alarmed = [(row, rules) for row, rules in healthy if rules]
    weight = sum(float(row["repo_weight"]) for row, _ in healthy)
    weighted = sum(float(row["repo_weight"]) for row, _ in alarmed) / weight if weight else 0.0
    plain["healthy"] = {
        "runs": len(healthy),
        "false_alarms": len(alarmed),
        "share": round(len(alarmed) / len(healthy), 4),
        "share_by_repository": round(weighted, 4),
    }
    if len(alarmed) / len(healthy) > FALSE_ALARMS:
        missed.append(f"healthy: {len(alarmed)} of {len(healthy)} runs with a warning or worse")
    sys.stdout.write(
        f"\nRuns labelled healthy with a warning or worse: {len(alarmed)} of {len(healthy)} "
        f"({share(len(alarmed), len(healthy))}; {100 * weighted:.1f} % by repository). Target: at most 2 %.\n"
    )
    _report_repositories(found, healthy)
    for one in found:
        if not one.found:
            sys.stderr.write(f"not found: {one.label}: {one.row['file']} (onset {one.row['onset_steps']})\n")
    for row, rules in alarmed:
        sys.stderr.write(f"false alarm: {', '.join(rules)}: {row['file']}\n")
    return plain, missed


def _report_repositories(found: list[Found], healthy: list[tuple[dict[str, str], list[str]]]) -> None:
    repositories: defaultdict[str, list[Found]] = defaultdict(list)
    calm: defaultdict[str, list[bool]] = defaultdict(list)
    for one in found:
        repositories[one.row["repo"]].append(one)
    for row, rules in healthy:
        calm[row["repo"]].append(bool(rules))
    lines = []
    for repository in sorted({*repositories, *calm}, key=str.lower):
        troubles = repositories.get(repository, [])
        told = ", ".join(
            f"{label} {sum(one.found for one in troubles if one.label == label)}"
            f"/{sum(one.label == label for one in troubles)}"
            for label in RULES_OF
            if any(one.label == label for one in troubles)
        )
        alarms = calm.get(repository, [])
        if told or any(alarms):
            lines.append((repository, told or "–", f"{sum(alarms)}/{len(alarms)}" if alarms else "–"))
    table(("Repository", "Found", "False alarms on healthy runs"), lines)
    quiet = sum(1 for repository, alarms in calm.items() if not any(alarms) and repository not in repositories)
    sys.stdout.write(f"\n{quiet} more repositories have healthy runs only, and no false alarm.\n")


# -- memory ------------------------------------------------------------------------------------------------------------


def report_memory(corpus: Path) -> tuple[Any, list[str]]:
    """Back-tests the memory traces; prints what came of it, and returns it with the targets that are missed."""
    rows = index(corpus / "memory.csv")
    findings = backtest([corpus / "memory" / row["file"] for row in rows])
    traces: defaultdict[str, list[tuple[str, bool]]] = defaultdict(list)
    ends: list[tuple[str, list[str]]] = []
    notes = 0
    for row in rows:
        told = [one for one in findings[row["file"]] if one["state"] == "firing"]
        growth = [one for one in told if one["rule"] in _GROWTH]
        labels = {row["label_gpu"], row["label_rss"]} - {""}
        if row["label_gpu"] == "ends_in_oom":
            ends.append((row["file"], [one["severity"] for one in told if one["rule"] in _HEADROOM]))
        elif labels and labels <= _CALM:
            # Findings do not tell their device here: one on any series counts against the trace.
            notes += any(one["rule"] in _HEADROOM for one in told)
            traces[row["label_gpu"] or f"{row['label_rss']} (no GPU)"].append((row["file"], bool(growth)))
    lines = [(label, len(found), sum(bad for _, bad in found)) for label, found in sorted(traces.items())]
    table(("Trace", "Runs", "Growth or OOM finding"), lines)
    calm = [one for found in traces.values() for one in found]
    false = [name for name, bad in calm if bad]
    seen = sum(bool(found) for _, found in ends)
    alarmed = sum(bool(_BAD & set(found)) for _, found in ends)
    sys.stdout.write(
        f"\nGrowth or OOM findings on calm traces: {len(false)} of {len(calm)} ({share(len(false), len(calm))}). "
        f"Target: at most 2 %. Of traces that end out of memory, the end of the headroom was seen in {seen} of "
        f"{len(ends)}, in {alarmed} of them with a warning or worse. Target: 6 of 8. Of the calm traces {notes} have a "
        "note of that kind too: a card nearly full is the rule where an allocator keeps what it has.\n"
    )
    for name in false:
        sys.stderr.write(f"false growth: {name}\n")
    for name, found in ends:
        if not found:
            sys.stderr.write(f"end of the headroom not seen: {name}\n")
    missed = []
    if calm and len(false) / len(calm) > FALSE_ALARMS:
        missed.append(f"memory: growth or OOM findings on {len(false)} of {len(calm)} calm traces")
    if ends and seen / len(ends) < HEADROOM_SEEN:
        missed.append(f"memory: the end of the headroom was seen in {seen} of {len(ends)}")
    plain = {"calm": len(calm), "false": len(false), "ends_in_oom": len(ends), "headroom_seen": seen} | {
        "headroom_alarmed": alarmed,
        "calm_with_headroom_note": notes,
    }
    return plain, missed


def written(page: Path, tables: str) -> str:
    """Returns a page with its tables replaced."""
    before, begin, rest = page.read_text("utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise SystemExit(f"{page} has no {_BEGIN} … {_END}")
    return f"{before}{begin}\n{tables.strip()}\n\n{end}{after}"


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="the folder with curves.csv and memory.csv")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also put the tables into this page")
    options = parser.parse_args()
    corpus = options.corpus
    if not (corpus / "curves.csv").is_file():
        sys.stderr.write(f"there is no curves.csv in {corpus}: name the folder with the labelled runs.\n")
        return 2
    tables = io.StringIO()
    with contextlib.redirect_stdout(tables):
        curves, missed = report_curves(*judge_curves(corpus))
        memory, also = report_memory(corpus)
    sys.stdout.write(tables.getvalue())
    if options.write:
        options.write.write_text(written(options.write, tables.getvalue()), "utf-8")
    for target in missed + also:
        sys.stderr.write(f"MISSED {target}\n")
    sys.stdout.write("\n" + json.dumps({"curves": curves, "memory": memory, "missed": missed + also}) + "\n")
    return 1 if missed + also else 0


if __name__ == "__main__":
    sys.exit(main())
