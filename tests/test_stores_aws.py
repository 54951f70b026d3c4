"""The files of AWS's tools: keys, and profiles that get their credentials otherwise."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from fastload import stores
from fastload.errors import SourceError
from tests.objectserver import ObjectServer
from tests.servers import NotHere, moto

KEY = "AKIAOFTHEPROGRAM"


@pytest.fixture
def home(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder `.aws` of a user whose environment has no credentials; `s3://bucket/x` is
    there."""
    for name in ("SKIP_SIGNATURE", "REGION"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("HOME", str(tmp_path))
    server.objects["bucket/x"] = b"data"
    (tmp_path / ".aws").mkdir()
    stores.forget()
    return tmp_path / ".aws"


@pytest.mark.parametrize("profile", ["default", "work"])
def test_keys_in_the_files(
    profile: str, home: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", profile)
    section = profile if profile == "default" else f"profile {profile}"
    (home / "config").write_text(f"[{section}]\nregion = eu-west-7\noutput = json\n")
    (home / "credentials").write_text(
        "[other]\naws_access_key_id = OTHER\naws_secret_access_key = s\n"
        f"[{profile}]\naws_access_key_id = OFTHEFILE\naws_secret_access_key = s%s\n"
    )
    assert stores.read("s3://bucket/x") == b"data"
    assert re.search(r"Credential=OFTHEFILE/\d+/eu-west-7/", server.signed[-1])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[profile other]\nregion = a\n", r"AWS_PROFILE=work: neither .*config nor .*credentials"),
        ("[profile work]\naws_access_key_id = A\n", r"'work'.* and not aws_secret_access_key"),
        ("no section\n", r"\.aws/config: cannot be read"),
    ],
)
def test_a_profile_that_is_wrong_is_refused_by_name(
    config: str, words: str, home: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "work")
    (home / "config").write_text(config)
    with pytest.raises(SourceError, match=rf"^s3://bucket: .*{words}"):
        stores.read("s3://bucket/x")
    assert not server.requests


@pytest.mark.parametrize("with_boto3", [False, True])
@pytest.mark.parametrize(
    ("lines", "way"),
    [
        ("sso_session = corp\nsso_account_id = 1\nsso_role_name = r", "sso_session"),
        ("sso_start_url = http://x\nsso_region = a\nsso_account_id = 1\nsso_role_name = r", "sso"),
        ("credential_process = /no/such/program", "credential_process"),
        ("role_arn = arn:aws:iam::1:role/r\nsource_profile = nobody", "role_arn"),
    ],
)
def test_credentials_that_cannot_be_had_are_an_error_that_names_the_way(
    lines: str,
    way: str,
    with_boto3: bool,
    home: Path,
    server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They once came from the role of the machine, without a word."""
    if with_boto3:
        pytest.importorskip("boto3", reason="boto3, which moto needs, is not installed")
    else:
        monkeypatch.setitem(sys.modules, "boto3", None)
    (home / "config").write_text(
        f"[default]\n{lines}\n[sso-session corp]\nsso_region = a\nsso_start_url = http://x\n"
    )
    said = "and boto3 gives none" if with_boto3 else "which takes boto3: pip install boto3"
    with pytest.raises(SourceError, match=rf"^s3://bucket: .*'default'.*{way}.*{said}"):
        stores.read("s3://bucket/x")
    assert not server.requests


def test_a_program_is_run_by_boto3(home: Path, server: ObjectServer) -> None:
    pytest.importorskip("boto3", reason="boto3, which moto needs, is not installed")
    said = json.dumps({"Version": 1, "AccessKeyId": KEY, "SecretAccessKey": "s"})
    program = shlex.join([sys.executable, "-c", f"print({said!r})"])
    (home / "config").write_text(f"[default]\nregion = eu-west-7\ncredential_process = {program}\n")
    assert stores.read("s3://bucket/x") == b"data"
    assert re.search(rf"Credential={KEY}/\d+/eu-west-7/", server.signed[-1])


def test_a_profile_without_credentials_is_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "config").write_text("[default]\nregion = eu-west-7\n[profile work]\nregion = a\n")
    stores.store_of("s3://bucket/x")
    assert not caplog.records
    monkeypatch.setenv("AWS_PROFILE", "work")
    stores.forget()
    stores.store_of("s3://bucket/x")
    assert "AWS_PROFILE=work: this profile has no credentials" in caplog.text


@pytest.mark.whole
def test_a_role_is_taken_by_boto3(
    home: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("boto3", reason="boto3, which moto needs, is not installed")
    (home / "config").write_text(
        "[default]\nregion = us-east-1\nrole_arn = arn:aws:iam::123456789012:role/reader\n"
        "source_profile = keys\n"
    )
    (home / "credentials").write_text(
        "[keys]\naws_access_key_id = AKIAOFTHEUSER\naws_secret_access_key = s\n"
    )
    try:
        with moto(tmp_path / "moto") as url:
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
            assert stores.read("s3://bucket/x") == b"data"
    except NotHere as reason:
        pytest.skip(str(reason))
    (key,) = re.findall(r"Credential=(\w+)/", server.signed[-1])
    assert key.startswith("ASIA")  # of a session of a role
