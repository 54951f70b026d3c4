"""Results as files: the versioned schema, CSV, and what `fastload bench compare` says of two of
them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from fastload.cli.app import app
from fastload.errors import ConfigurationError
from fastload.tools.bench.compare import compare_results, print_comparison
from fastload.tools.measure.results import (
    SCHEMA_VERSION,
    Failure,
    Results,
    Round,
    from_json,
    read_json,
    results_schema,
    to_csv,
    to_json,
    write_text,
)
from fastload.tools.measure.statistics import Verdict, summarise
from tests.measured import MACHINE, full_results, results, row

# -- JSON and its schema ---------------------------------------------------------------------------


def test_json_and_back_is_the_same() -> None:
    original = full_results()
    assert from_json(to_json(original), "x") == original


def test_verdicts_survive_too() -> None:
    verdict = Verdict(
        "speed", 2.0, at_least=True, worst=False, unit="", found=summarise([1.0, 2.0, 3.0])
    )
    original = replace(full_results(), verdicts=(verdict, replace(verdict, found=None)))
    assert from_json(to_json(original), "x") == original
    assert [verdict.reached for verdict in original.verdicts] == [True, None]


def test_a_file_of_the_first_version_is_read() -> None:
    document = json.loads(to_json(full_results())) | {"schema_version": 1}
    del document["verdicts"]
    assert from_json(json.dumps(document), "x") == replace(full_results(), schema_version=1)


def test_infinite_numbers_become_null() -> None:
    infinite = replace(row("a", [1.0]), rounds=(Round(1, 1.0, 0.0, {"psnr_db": math.inf}),))
    document = json.loads(to_json(results(infinite)))
    assert document["measurements"][0]["rounds"][0]["metrics"] == {"psnr_db": None}


def test_the_schema_names_every_field_and_knows_no_other() -> None:
    schema = results_schema()["$defs"]
    assert set(schema) == {
        "Failure",
        "Latency",
        "Machine",
        "Measurement",
        "Results",
        "Round",
        "Summary",
        "Verdict",
    }
    assert all(definition["additionalProperties"] is False for definition in schema.values())
    document = json.loads(to_json(full_results()))
    assert set(document) == set(schema["Results"]["properties"])
    assert set(document["measurements"][0]) == set(schema["Measurement"]["properties"])


def _remove(document: dict[str, Any]) -> None:
    del document["machine"]["cpu"]


def _add(document: dict[str, Any]) -> None:
    document["measurements"][0]["extra"] = 1


def _text_for_number(document: dict[str, Any]) -> None:
    document["measurements"][0]["rounds"][1]["seconds"] = "1"


def _flag_for_number(document: dict[str, Any]) -> None:
    document["measurements"][0]["rounds"][0]["samples"] = True


def _unknown_status(document: dict[str, Any]) -> None:
    document["measurements"][1]["status"] = "lost"


def _series(document: dict[str, Any]) -> None:
    document["measurements"][0]["series"]["gpu_busy"][0][1] = None


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (_remove, r"missing required field `cpu` - at `\$\.machine`"),
        (_add, r"unknown field `extra` - at `\$\.measurements"),
        (
            _text_for_number,
            r"Expected `float`, got `str` - at "
            r"`\$\.measurements\[[.\d]+\]\.rounds\[[.\d]+\]\.seconds`",
        ),
        (_flag_for_number, r"Expected `int`, got `bool` - at .*samples"),
        (_unknown_status, r"Invalid enum value 'lost' - at `\$\.measurements\[[.\d]+\]\.status`"),
        (_series, r"Expected `float`, got `null` - at `\$\.measurements\[[.\d]+\]\.series"),
    ],
)
def test_a_document_that_is_not_as_the_schema_says_is_refused(
    spoil: Callable[[dict[str, Any]], None], where: str
) -> None:
    document = json.loads(to_json(full_results()))
    spoil(document)
    with pytest.raises(ConfigurationError, match=where) as caught:
        from_json(json.dumps(document), "some.json")
    assert str(caught.value).startswith("some.json: ")


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "{}", "12"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"some\.json: .* written? with --json|some\.json: not JSON"
    ):
        from_json(text, "some.json")


def test_another_version_is_refused_with_both_numbers() -> None:
    document = json.loads(to_json(full_results())) | {"schema_version": 7}
    with pytest.raises(
        ConfigurationError, match=rf"schema version 7, this fastload reads 1 to {SCHEMA_VERSION}"
    ):
        from_json(json.dumps(document), "x")


def test_binary_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="not a text file"):
        read_json(tmp_path / "x")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    write_text(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(target, "new" + "\ud800")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_csv_has_a_line_for_each_row() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(full_results()))))
    assert [line["contestant"] for line in lines] == ["a", "b"]
    first, second = lines
    assert (first["threads"], float(first["rate_median"]), first["rounds"], first["failures"]) == (
        "2",
        105.0,
        "3",
        "1",
    )
    assert float(first["pixels_per_second"]) == pytest.approx(105e5)
    assert (second["status"], second["rate_median"], second["note"]) == (
        "unavailable",
        "",
        "pip install b",
    )


# -- compare ---------------------------------------------------------------------------------------

BASE = [100.0, 101.0, 99.0, 100.5, 99.5]


def verdicts(before: Results, after: Results) -> dict[str, str]:
    return {
        change.row.contestant: change.verdict for change in compare_results(before, after).changes
    }


def scaled(factor: float) -> list[float]:
    return [rate * factor for rate in BASE]


def test_what_is_faster_slower_and_noise() -> None:
    before = results(*(row(name, BASE) for name in ("up", "down", "same", "few")))
    after = results(
        row("up", scaled(1.5)),
        row("down", scaled(0.5)),
        row("same", scaled(1.004)),
        row("few", [300.0, 301.0]),
    )
    assert verdicts(before, after) == {
        "up": "faster",
        "down": "slower",
        "same": "within noise",
        "few": "cannot tell",
    }


def test_rows_match_by_contestant_mode_and_parameters() -> None:
    before = results(
        row("a", BASE), row("a", BASE, mode="crop224"), row("a", BASE, parameters={"threads": 8})
    )
    after = results(row("a", scaled(2)), row("b", BASE))
    comparison = compare_results(before, after)
    assert len(comparison.changes) == 1
    assert comparison.changes[0].ratio == pytest.approx(2.0)
    assert comparison.only_before == ("a, crop224, threads 2", "a, full, threads 8")
    assert comparison.only_after == ("b, full, threads 2",)


def test_other_conditions_are_said() -> None:
    machine = replace(MACHINE, cpu="Other CPU", libraries={"torch": "2.6"})
    after = results(
        row("a", BASE), machine=machine, complete=False, fastload="0.2", settings={"folder": "y"}
    )
    conditions = "\n".join(compare_results(results(row("a", BASE)), after).conditions)
    for expected in (
        "Some CPU",
        "Other CPU",
        "torch: 2.5 -> 2.6",
        "Pillow: 11 -> absent",
        "fastload: 0.1 -> 0.2",
    ):
        assert expected in conditions
    assert "Other folder: x -> y" in conditions
    assert "The second run was stopped" in conditions


def test_a_faster_decoder_with_other_pixels_or_failures_is_remarked() -> None:
    def with_pixels(largest: float) -> tuple[Round, ...]:
        return tuple(
            Round(100, 100 / rate, 0.1, {"pixel_difference_max": largest}) for rate in BASE
        )

    before = results(row("a", BASE, rounds=with_pixels(1)))
    after = results(
        row("a", BASE, rounds=with_pixels(40), version="2", failures=(Failure("x", "y"),))
    )
    (change,) = compare_results(before, after).changes
    assert change.remarks == (
        "version 1 -> 2",
        "failures 0 -> 1",
        "largest pixel difference 1 -> 40",
    )


def test_two_kinds_of_benchmark_cannot_be_compared() -> None:
    with pytest.raises(ConfigurationError, match="`bench decode`, the other of `bench loader`"):
        compare_results(results(), results(benchmark="loader"))


def test_the_comparison_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    before = results(row("a", BASE), row("b", BASE))
    print_comparison(
        compare_results(before, results(row("a", scaled(1.5)), row("b", BASE))), Console(width=60)
    )
    out = capsys.readouterr().out
    assert "a, full, threads 2  100 ± 0.5%  150 ± 0.5%  +50.0%        faster" in out
    assert "Of 2 rows that both have: 1 faster, 0 slower, 1 within noise." in out
    print_comparison(compare_results(before, results(row("c", BASE))), Console(width=60))
    assert "no row in common" in capsys.readouterr().out


def test_the_command(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, rates in zip(paths, (BASE, scaled(0.5)), strict=True):
        write_text(path, to_json(results(row("a", rates))))
    done = CliRunner().invoke(app, ["bench", "compare", *paths])
    assert done.exit_code == 0, done.stderr
    assert "1 slower" in done.stdout
    done = CliRunner().invoke(app, ["bench", "compare", paths[0], str(tmp_path / "none.json")])
    assert done.exit_code == 1
    assert done.stderr.startswith(
        f"fastload: {tmp_path / 'none.json'}: cannot be read (No such file or directory). Give"
    )
    assert "--json" in done.stderr
