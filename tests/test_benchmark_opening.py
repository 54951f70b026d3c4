"""benchmarks.opening opens its stand-in for a store, by both ways of listing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import opening
from fastload import stores
from fastload.stores import objects


@pytest.mark.whole
@pytest.mark.parametrize("plain", [False, True])
def test_a_folder_is_opened_and_what_it_took_is_said(
    plain: bool,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("obstore", reason="obstore, of the extra `remote`, is not installed")
    for name in ("FASTLOAD_CLIENT", "AWS_SKIP_SIGNATURE", "AWS_REGION", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
    monkeypatch.setattr(objects, "_SOON", 0.0)
    started, pages = list[object](), opening.StandIn.list

    def noted(self: opening.StandIn, *given: Any, **more: Any) -> Any:
        started.append(more["offset"])
        return pages(self, *given, **more)

    monkeypatch.setattr(opening.StandIn, "list", noted)
    stores.forget()
    try:
        opening.main(["--objects", "2500", "--latency", "0.01", *["--plain"] * plain])
    finally:
        stores.forget()
    assert capsys.readouterr().out.startswith("2,500 objects: ")
    assert bool(started) is not plain, "pages after a name are of ranges"
