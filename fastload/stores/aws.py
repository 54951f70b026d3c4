"""Credentials and region from the files of AWS's tools: `~/.aws/config`, `~/.aws/credentials`, and
the profile that `AWS_PROFILE` names.

Keys that stand there are read here. Other ways to get credentials (single sign-on, a program, a
role) are boto3's, where that is installed. The machine's own role, which obstore asks where there
is nothing else, never takes the place of what a profile says.
"""

from __future__ import annotations

import configparser
import importlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from fastload.stores.base import StoreError, words_of

logger = logging.getLogger("fastload")

_IN_ENVIRONMENT = frozenset(
    {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE"}
)
_KEYS = ("aws_access_key_id", "aws_secret_access_key")
# What a profile may say in place of keys, and what that is. boto3 prefers the first ones to keys in
# the files, and a program to keys in `config` alone.
_BEFORE_KEYS = {
    "role_arn": "a role",
    "sso_session": "single sign-on",
    "sso_start_url": "single sign-on",
    "login_session": "aws login",
}
_PROGRAM = "credential_process"
# How boto3 got credentials where it asked the machine.
_OF_MACHINE = frozenset({"iam-role", "container-role"})
# For so long obstore uses credentials before it asks for them again; boto3 renews them in time.
_USED_FOR = timedelta(minutes=5)


def settings() -> dict[str, Any]:
    """Options for a client of obstore; none where the environment has the credentials.

    Raises StoreError: the profile is in no file, or its credentials cannot be had.
    """
    names = os.environ.keys() | {name.upper() for name in os.environ}
    if names & _IN_ENVIRONMENT:
        return {}
    named = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    profile = named or "default"
    config = _section("config", profile if profile == "default" else f"profile {profile}")
    credentials = _section("credentials", profile)
    if named and config is None and credentials is None:
        raise StoreError(
            f"AWS_PROFILE={profile}: neither {_path('config')} nor {_path('credentials')} has this "
            "profile; correct the name, or take the variable away."
        )
    config, credentials = config or {}, credentials or {}
    options: dict[str, Any] = {}
    region = {**config, **credentials}.get("region")
    if region and not names & {"AWS_REGION", "AWS_DEFAULT_REGION"}:
        options["aws_region"] = region
    return options | _credentials(profile, config, credentials, named=bool(named))


def _credentials(
    profile: str, config: Mapping[str, str], credentials: Mapping[str, str], *, named: bool
) -> dict[str, Any]:
    """As options for obstore. `named`: whether the environment names the profile."""
    both = {**config, **credentials}
    way = next((name for name in _BEFORE_KEYS if both.get(name)), None)
    if way is None and both.get(_PROGRAM) and not all(map(credentials.get, _KEYS)):
        way = _PROGRAM
    if way is not None:
        words = f"{_BEFORE_KEYS.get(way, 'a program')} ({way})"
        return {"credential_provider": _by_boto3(profile, words)}
    given = [key for key in _KEYS if both.get(key)]
    if len(given) == 1:
        raise StoreError(
            f"the profile {profile!r} of {_path('credentials')} has {given[0]} and not "
            f"{next(key for key in _KEYS if key not in given)}; write both."
        )
    if not given and named:
        logger.warning(
            "AWS_PROFILE=%s: this profile has no credentials; the role of this machine is asked.",
            profile,
        )
    keys = (*_KEYS, "aws_session_token") if given else ()
    return {key: both[key] for key in keys if key in both}


def _path(name: str) -> str:
    variable = {"config": "AWS_CONFIG_FILE", "credentials": "AWS_SHARED_CREDENTIALS_FILE"}[name]
    return os.path.expanduser(os.environ.get(variable) or f"~/.aws/{name}")


def _section(name: str, section: str) -> dict[str, str] | None:
    """Of the file `config` or `credentials`; None where there is no such section, or no file."""
    path, parser = _path(name), configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError) as error:
        raise StoreError(f"{path}: cannot be read ({words_of(error)}); correct it.") from None
    return dict(parser.items(section)) if parser.has_section(section) else None


@dataclass(frozen=True)
class Boto3Credentials:
    """Those of a profile, as obstore asks for them."""

    profile: str
    credentials: Any = field(compare=False)

    def __call__(self) -> dict[str, Any]:
        now = self.credentials.get_frozen_credentials()
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(timezone.utc) + _USED_FOR,
        }


def _by_boto3(profile: str, way: str) -> Boto3Credentials:
    """Raises StoreError. `way`: to get credentials, for messages."""
    what = f"the profile {profile!r} of AWS's tools gets its credentials by {way}"
    instead = (
        "or set the keys in the environment: "
        f'eval "$(aws configure export-credentials --profile {profile} --format env)"'
    )
    try:
        boto3: Any = importlib.import_module("boto3")
    except ImportError:
        raise StoreError(f"{what}, which takes boto3: pip install boto3, {instead}.") from None
    try:
        theirs = boto3.Session(profile_name=profile).get_credentials()
        if theirs is not None and theirs.method not in _OF_MACHINE:
            credentials = Boto3Credentials(profile, theirs)
            credentials()
            return credentials
        words = "it finds none"
    except Exception as error:  # of many classes
        words = words_of(error)
    raise StoreError(f"{what}, and boto3 gives none ({words}); log in again, {instead}.")
