"""Texts with labels: files, tokens made once, batches as long as their longest text, and a RoBERTa
that learns."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError, SourceError
from fastload.train import train
from fastload.train.config import ModelConfig
from fastload.train.data import TrainingData, open_data
from fastload.train.models import Shape, create_model
from fastload.train.settings import merged
from fastload.train.tasks import create_task
from fastload.train.texts import PADDING
from tests.train_job import Job, run

pytest.importorskip("transformers")

GOOD = ["a fine film", "wonderful and warm", "I loved it", "a great, great story told well"]
BAD = [
    "a dull film",
    "tedious and cold",
    "I hated it",
    "a poor story, badly told and far too long for what it is",
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path / "cache" / "fastload" / "texts"
    torch.set_num_threads(threads)


def examples(count: int, labels: tuple[str, str] = ("0", "1")) -> list[tuple[str, str]]:
    rng = np.random.default_rng(0)
    return [
        (str(rng.choice(GOOD if good else BAD)), labels[good])
        for good in rng.permutation(np.arange(count) % 2)
    ]


def write(
    path: Path, rows: list[tuple[str, str]], names: tuple[str, str] = ("text", "label")
) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
        elif path.suffix == ".csv":
            csv.writer(file).writerows([names, *rows])
        else:
            file.writelines("\t".join(row) + "\n" for row in [names, *rows])
    return path


def settings(data: Path, **given: Any) -> dict[str, Any]:
    return {
        "task": "text-classification",
        "data": str(data),
        "model": "transformers:roberta-tiny",
        "channels_last": False,
        "batch_size": 4,
        "num_workers": 1,
        "device": "cpu",
        "optimizer": "adamw",
        "reference_batch": None,
        "lr": 1e-3,
        "schedule": "constant",
        "progress": False,
        **given,
    }


def opened(data: Path, **given: Any) -> TrainingData:
    found = open_data(
        merged(settings(data, **given)), shard=fastload.Shard(), device=torch.device("cpu")
    )
    for loader in filter(None, (found.train, found.val)):
        loader.close()
    return found


def tokens_of(data: TrainingData) -> Any:
    return data.source.values["input_ids"].at(np.arange(len(data.source)))


# -- Files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_a_folder_of_tables(ending: str, tmp_path: Path) -> None:
    write(tmp_path / f"train.{ending}", examples(12))
    write(tmp_path / f"dev.{ending}", examples(5)[:5])
    found = opened(tmp_path)
    assert (len(found.source), found.shape.num_classes, found.source.classes) == (12, 2, None)
    assert found.val is not None
    assert len(found.val) == 2
    assert found.shape.vocabulary is not None
    tokens = tokens_of(found)
    assert tokens.dtype == np.int32
    assert (tokens[:, 0] == 0).all()
    assert ((tokens == 2).sum(1) == 1).all(), "one end each"
    assert found.source.values["label"].at(np.arange(12)).tolist() == [
        int(label) for _, label in examples(12)
    ]


def test_the_three_formats_and_quotes_give_the_same_tokens(tmp_path: Path) -> None:
    rows = [*examples(6), ('he said "never", and\tleft', "1")]
    found = [
        tokens_of(opened(write(tmp_path / f"x.{ending}", rows))) for ending in ("csv", "jsonl")
    ]
    assert np.array_equal(*found)


def test_words_are_classes_in_alphabetical_order(tmp_path: Path) -> None:
    found = opened(
        write(tmp_path / "x.tsv", examples(8, ("pos", "neg")), names=("sentence", "label"))
    )
    assert found.source.classes == ("neg", "pos")
    wanted = [{"neg": 0, "pos": 1}[label] for _, label in examples(8, ("pos", "neg"))]
    assert found.source.values["label"].at(np.arange(8)).tolist() == wanted


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.tsv", "text\nfine\n", "x.tsv: there is no column 'label'; the first line"),
        ("x.tsv", "label\n1\n", "x.tsv: there is no column 'text'"),
        ("x.tsv", "text\tlabel\n", "x.tsv: no texts found"),
        ("x.tsv", "", "x.tsv: there is no column 'text'; .* found none"),
        ("x.tsv", "text\tlabel\nfine\n", "x.tsv, line 2: 1 column, but the first line has 2"),
        ("x.tsv", "text\tlabel\na\t1\nb\t1\n", "x.tsv: every text has the label '1'"),
        (
            "x.tsv",
            "text\tlabel\na\t0\nb\t-1\n",
            "x.tsv: the label '-1' is no whole number from 0 on",
        ),
        ("x.tsv", "text\tlabel\na\t0\nb\t1.0\n", "x.tsv: the label '1.0' is no whole number"),
        ("x.jsonl", "{'text': 1}\n", "x.jsonl, line 1: is no JSON"),
        ("x.jsonl", '{"text": "a"}\n', "x.jsonl: there is no column 'label'"),
        ("x.txt", "a", "x.txt: texts are in .tsv, .csv or .jsonl files"),
    ],
)
def test_files_that_are_none_are_refused(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=message):
        opened(tmp_path / name)


def test_other_labels_in_validation_and_too_many_are_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "a.tsv", examples(8, ("pos", "neg")))
    with pytest.raises(SourceError, match=r"b.tsv: has labels that .*a.tsv has not: meh"):
        opened(data, val_data=write(tmp_path / "b.tsv", [("so so", "meh"), ("good", "pos")]))
    numbers = write(tmp_path / "d.tsv", [("a", "0"), ("b", "1")])
    with pytest.raises(SourceError, match=r"e.tsv: has labels that .*d.tsv has not: 2"):
        opened(numbers, val_data=write(tmp_path / "e.tsv", [("a", "0"), ("b", "2")]))
    with pytest.raises(ConfigurationError, match="num_classes: the data have 4 classes, got 2"):
        opened(write(tmp_path / "c.tsv", [("a", "0"), ("b", "3")]), num_classes=2)
    with pytest.raises(SourceError, match="no train.tsv, train.csv or train.jsonl"):
        opened(tmp_path)
    with pytest.raises(SourceError, match="text-classification needs|gone.tsv: cannot be read"):
        opened(tmp_path / "gone.tsv")


# -- Tokens ----------------------------------------------------------------------------------------


def test_texts_that_are_too_long_are_cut_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "x.tsv", [*examples(6), ("many " * 400, "1")])
    with caplog.at_level(logging.WARNING, "fastload"):
        tokens = tokens_of(opened(data, text_length=16))
    assert tokens.shape == (7, 16)
    assert (tokens[6, 0], tokens[6, -1]) == (0, 2)
    monkeypatch.setenv("RANK", "1")  # of several that open the same files
    tokens_of(opened(data, text_length=12))
    (record,) = caplog.records
    assert re.search(
        r"x.tsv: [1-7] of 7 texts are longer than 16 tokens and were cut off", record.getMessage()
    )


def test_tokens_are_made_once(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "x.tsv", examples(6))
    first = opened(data)
    kept = sorted(path.name for path in own_cache.iterdir())
    assert len(kept) == 1
    monkeypatch.setattr("fastload.train.texts._tokenise", lambda *_: pytest.fail("tokenised again"))
    again = opened(data)
    assert np.array_equal(tokens_of(first), tokens_of(again))
    assert again.source.fingerprint == first.source.fingerprint
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert opened(data).source.fingerprint == first.source.fingerprint, (
        "a run may go on after the cache is gone"
    )


@pytest.mark.slow
def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    import tokenizers

    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    )
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    with pytest.raises(
        ConfigurationError,
        match="begin, padding and end are .*, and of RoBERTa's tokenizers they are",
    ):
        opened(write(tmp_path / "x.tsv", examples(6)), tokenizer=str(tmp_path))


@pytest.mark.whole
def test_a_tokenizer_in_a_folder_is_taken(tmp_path: Path) -> None:
    import tokenizers
    import transformers

    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        GOOD + BAD, vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    )
    bpe.save_model(str(tmp_path))
    roberta = transformers.RobertaTokenizerFast(
        str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")
    )
    roberta.save_pretrained(str(tmp_path / "tokenizer"))
    data = write(tmp_path / "x.tsv", examples(6))
    found = opened(data, tokenizer=str(tmp_path / "tokenizer"))
    assert found.shape.vocabulary == len(roberta)
    for row, (text, _) in zip(tokens_of(found), examples(6), strict=True):
        assert [int(token) for token in row if token != PADDING] == roberta(text)["input_ids"]


@pytest.mark.slow
def test_a_batch_is_as_long_as_its_longest_text_and_padding_changes_nothing() -> None:
    task = create_task(merged({"task": "text-classification"}), num_classes=2)
    tokens = torch.tensor([[0, 7, 2, 1, 1, 1], [0, 8, 9, 2, 1, 1]], dtype=torch.int32)
    inputs = task.prepare(
        {"input_ids": tokens, "label": torch.tensor([0, 1])}, Draws(0, 0, np.arange(2))
    )
    assert inputs.model_input.tolist() == [[0, 7, 2, 1], [0, 8, 9, 2]]
    assert inputs.target.tolist() == [0, 1]
    torch.manual_seed(0)
    shape = Shape(
        task="text-classification", num_classes=2, in_channels=1, image_size=(1, 1), vocabulary=16
    )
    model = create_model(ModelConfig(model="transformers:roberta-tiny"), shape).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(inputs.model_input), model(tokens.long()))
        torch.testing.assert_close(model(inputs.model_input[:1, :3]), model(tokens.long())[:1])


# -- Training --------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_tiny_roberta_tells_good_from_bad(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", examples(64))
    write(tmp_path / "dev.tsv", examples(9))
    console = Console(file=io.StringIO(), width=300)
    found = train(
        merged(settings(tmp_path, out=tmp_path / "out", epochs=3, batch_size=8)), console=console
    )
    assert found.epochs[-1].val is not None
    assert found.epochs[-1].val["top1"] == 1.0
    assert found.best == 1.0
    assert "texts/s" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.whole
def test_accumulated_and_over_two_ranks_it_is_the_same_run(tmp_path: Path) -> None:
    """Batches have other lengths then: what is padding must not count."""
    write(tmp_path / "train.tsv", examples(40))
    write(tmp_path / "dev.tsv", examples(9))
    common = {"deterministic": True, "epochs": 1, "model_option": ["hidden_dropout_prob=0.0"]}
    common["model_option"] += ["attention_probs_dropout_prob=0.0"]
    given = {"one": (1, 8, 1), "accumulated": (1, 2, 4), "ranks": (2, 4, 1)}
    found = {}
    for name, (ranks, batch, accumulate) in given.items():
        job = settings(
            tmp_path, out=str(tmp_path / name), batch_size=batch, accumulate=accumulate, **common
        )
        if ranks > 1:
            epochs = run(Job(job, own=False), tmp_path / f"at-{name}", ranks=ranks)["epochs"]
        else:  # transformers is imported here
            epochs = json.loads(train(merged(job), console=Console(quiet=True)).to_json())["epochs"]
        found[name] = epochs[0]
    for name in ("accumulated", "ranks"):
        for part in ("train", "val"):
            assert found[name][part] == pytest.approx(found["one"][part], rel=1e-3), (name, part)
