"""`fastload doctor`: what this machine has, and what to change."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fastload.cli.findings import Finding
from fastload.terminal import output, plain_errors

__all__ = ["doctor"]

_STYLE = {"ok": "green", "note": "cyan", "warning": "yellow", "broken": "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of findings instead.")] = False,
) -> None:
    """List decoders, backends, libraries, cores and limits, each with advice where something is off.

    Exit code 1 if something is broken, otherwise 0.
    """
    with plain_errors():
        from fastload.cli.machine import machine
        from fastload.cli.software import software

        findings = [*software(), *machine()]
        if as_json:
            print(json.dumps([asdict(finding) for finding in findings], indent=2))
        else:
            _print(findings, output())
        if any(finding.status == "broken" for finding in findings):
            raise typer.Exit(1)


def _print(findings: list[Finding], console: Console) -> None:
    names = max(len(finding.name) for finding in findings)
    for group, members in groupby(findings, lambda finding: finding.group):
        console.print(Text(group, "bold"))
        for finding in members:
            mark = (f"  {finding.status:<9}", _STYLE[finding.status])
            # Lines are not wrapped: the advice is often a command to copy.
            console.print(Text.assemble(mark, f"{finding.name:<{names}}  {finding.value}"), soft_wrap=True)
            if finding.advice:
                console.print(Text.assemble(" " * (names + 13), (finding.advice, "italic")), soft_wrap=True)
    off = sum(finding.status in ("warning", "broken") for finding in findings)
    console.print()
    console.print("Nothing to change." if not off else f"{off} to look at, marked warning or broken.")
