"""The results as a page of text: what a person reads first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.goals import judge

__all__ = ["summary"]


def summary(results: Mapping[str, Any]) -> str:
    """All parts that there are, the goals last."""
    parts = results["parts"]
    sections = [
        _head(results),
        _contract(parts.get("contract", {})),
        _streams(parts.get("streams", {})),
        *_idle(parts.get("idle", {})),
        _decode(parts.get("decode", {})),
        _cifar(parts.get("cifar", {})),
        _threads(parts.get("threads", {})),
        "\n".join(["GOALS", *map(str, judge(parts))]),
    ]
    return "\n\n".join(filter(None, sections))


def _head(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    lines = [
        f"fastload {results['fastload']} on {gpus}; {machine['cores']} cores of {machine['cpu']}",
        f"native core: {results['native']}",
        results["input"],
        *(["A DRY RUN: it shows that the code runs; the figures mean nothing."] if results["dry_run"] else []),
    ]
    for name, part in results["parts"].items():
        notes = "".join(f"; {note}" for note in part.get("notes", []))
        lines.append(f"{name}: {part['status']}, {part['seconds']:.0f} s{notes}")
    return "\n".join(lines)


def _contract(part: Mapping[str, Any]) -> str:
    if not part.get("suite") and not part.get("rows"):
        return ""
    suite = part.get("suite", {})
    lines = [f"CONTRACT SUITE: {suite.get('status', 'not run')} {suite.get('note', '')}".rstrip()]
    if "passed" in suite:
        lines.append(f"{suite['passed']} passed, {suite['failed']} failed, {suite['skipped']} skipped")
        lines += [f"  FAILED {found['test']}: {found['message'][:150]}" for found in suite["failures"][:20]]
        lines += [f"  skipped {count}: {reason}" for reason, count in suite["reasons"].items()]
    rows = []
    for row in part.get("rows", []):
        pixels, resume, memory = (row.get(name, {}) for name in ("pixels", "resume", "memory"))
        rows.append(
            [
                row["name"],
                row.get("status") or pixels.get("status", "-"),
                "equal" if pixels.get("largest_difference") == 0 else _number(pixels.get("psnr_db"), "{:.1f} dB"),
                resume.get("status", "-"),
                _number(memory.get("host_bytes"), "{:,.0f} MB", 1e6),
                _number(memory.get("torch_peak_bytes"), "{:,.0f} MB", 1e6),
                _number(memory.get("device_bytes"), "{:,.0f} MB", 1e6),
            ]
        )
        lines += [f"  {row['name']}: {found['note']}" for found in (pixels, resume, memory, row) if found.get("note")]
    head = ["checks", "pixels", "against the CPU", "resume", "host memory", "of torch", "of the device"]
    other = part.get("other_gpus", {})
    context = f"contexts on other GPUs: {other.get('status', 'not checked')} {other.get('note', '')}".rstrip()
    return "\n".join([*lines, "", _table(head, rows), context])


def _streams(part: Mapping[str, Any]) -> str:
    if not part.get("rows"):
        return ""
    names = ("used_at_once", "kept", "on_another_stream", "against_the_cpu")
    rows = [
        [row["name"], row["status"], *(_number(row.get(name), "{:.0f}") for name in names), row.get("note", "")]
        for row in part["rows"]
    ]
    head = ["batches that differ", "", "used at once", f"kept {part['kept_steps']} steps", "other stream", "CPU", ""]
    return _table(head, rows)


def _idle(part: Mapping[str, Any]) -> Iterator[str]:
    for network, found in part.get("networks", {}).items():
        rows = []
        for row in found["rows"]:
            if not row["turns"]:
                rows.append([row["name"], row.get("status", "-"), row.get("note", "")[:60], *[""] * 5])
                continue
            profile = row.get("profile", {})
            rows.append(
                [
                    row["name"],
                    _number(row["images_per_second"], "{:,.0f}"),
                    _number(row["of_synthetic"], "{:.1%}"),
                    _number(row["busy_share"], "{:.1%}"),
                    _number(profile.get("busy_share"), "{:.1%}"),
                    _number(row["gaps_over_5_ms"], "{:.0f}"),
                    _number(row["windows_at_0"], "{:.0f}"),
                    _number(row["host_cpu_share"], "{:.0%}"),
                ]
            )
        head = [network, "img/s", "of synthetic", "busy", "by profiler", "gaps > 5 ms", "windows at 0%", "host CPU"]
        yield _table(head, rows) + f"\nthe driver's windows: {part.get('driver', '')}"


def _decode(part: Mapping[str, Any]) -> str:
    rows: dict[tuple[str, str], dict[int, str]] = {}
    threads: list[int] = []
    for row in part.get("rows", []):
        shown = _number(row.get("images_per_second"), "{:,.0f}") if row["status"] == "measured" else row["status"]
        rows.setdefault((row["task"], row["name"]), {})[row["threads"]] = shown
        threads = sorted({*threads, row["threads"]})
    if not rows:
        return ""
    head = ["decoding, img/s with threads:", "", *map(str, threads)]
    table = _table(head, [[name, task, *(found.get(t, "-") for t in threads)] for (task, name), found in rows.items()])
    compared = part.get("torchvision_pixels")
    if compared is None:
        return table
    if "note" in compared:
        return f"{table}\ntorchvision on the device: {compared['note']}"
    worst = _number(compared["worst_psnr_db"], "{:.1f} dB")
    return f"{table}\ntorchvision, device against CPU: {compared['equal']} of {compared['images']} equal, worst {worst}"


def _cifar(part: Mapping[str, Any]) -> str:
    if not part.get("alone"):
        return ""
    rows = [[str(r["batch_size"]), r["output"], _number(r["images_per_second"], "{:,.0f}")] for r in part["alone"]]
    lines = [_table(["CIFAR-10, resident: batch", "output", "img/s"], rows)]
    training = part.get("training")
    if training:
        lines.append(
            f"{training['network']}, batches of {training['batch_size']}: {training['images_per_second']:,.0f} img/s; "
            f"the loader takes {training['loader_share']:.2%} of a step of {training['step_seconds'] * 1000:.2f} ms"
        )
    return "\n".join(lines)


def _threads(part: Mapping[str, Any]) -> str:
    if not part.get("rows"):
        return ""
    names = ("alone", "beside", "apart", "fed")
    rows = [
        [str(row["threads"]), *(f"{row[name]['median_seconds'] * 1000:.1f}" for name in names)] for row in part["rows"]
    ]
    head = [f"{part['network']}, ms a step; threads", "no loader", "beside it", "own process", "fed by it"]
    return f"{_table(head, rows)}\n{part.get('advice', '')}"


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    return "-" if value is None else form.format(value / unit)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = []
    for row in [head, *rows]:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)
