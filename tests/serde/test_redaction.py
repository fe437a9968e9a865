"""Secrets in arguments reach no row, error, event, log or export; passwords of URLs no message."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import pytest
from pydantic import SecretStr

import perdure
from perdure.errors import BadURL, Unavailable
from perdure.journal import connect_later
from perdure.serde.redaction import HIDDEN, fill, hide, hide_in_url, is_secret, redact, secrets_in
from perdure.thread_import import import_threads
from tests.support.commands import commands_at

CANARY = "hunter2-canary-8f3a"


NAMED = [
    "Authorization",
    "authorization",
    "Proxy-Authorization",
    "x-api-key",
    "X-API-Key",
    "api_key",
    "apiKey",
    "Cookie",
    "Set-Cookie",
    "set_cookie",
    "password",
    "DB_PASSWORD",
    "token",
    "secret",
    "access_token",
    "accessToken",
    "client_secret",
    "clientSecret",
    "private_key",
    "privateKey",
    "X-Auth-Token",
    "aws_secret_access_key",
    "passwd",
    "passphrase",
    "jwt",
    "openai_api_key",
    "x-amz-security-token",
    "refresh_token",
    "X-Goog-Api-Key",
    "session_id",
]
OTHERS = [
    "to",
    "subject",
    "key",
    "max_tokens",
    "page_token",
    "tokens",
    "author",
    "secretary",
    "keys",
    "public_key",
    "authors",
    "cookies_eaten",
    "name",
    "tokenizer",
]


@pytest.mark.parametrize("name", [*NAMED, b"authorization"])
def test_a_secret_is_known_by_its_name(name: Any) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", [*OTHERS, "", 5, None])
def test_other_names_are_not_secrets(name: Any) -> None:
    assert not is_secret(name)


SHAPES: dict[str, Any] = {
    "dict": {"Authorization": f"Bearer {CANARY}", "to": "ada"},
    "nested": {"request": {"headers": {"x-api-key": CANARY}}, "to": "ada"},
    "in a list": [{"password": CANARY}, {"to": "ada"}],
    "pairs": [("Cookie", f"session={CANARY}"), ("Accept", "text")],
    "bytes": [(b"authorization", f"Bearer {CANARY}".encode())],
    "tuple": (("Set-Cookie", CANARY), ("a", "b")),
    "json": json.dumps({"a": {"client_secret": CANARY}, "to": "ada"}),
    "url": f"https://ada:{CANARY}@example.com/x",
    "query": f"https://example.com/x?to=ada&access_token={CANARY}&n=1",
    "pydantic": {"a": [SecretStr(CANARY)]},
    "under a secret name": {"credentials": {"user": "ada", "words": [CANARY]}},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_is_hidden_and_filled_again(shape: str) -> None:
    value = SHAPES[shape]
    hidden = hide(value)
    assert CANARY not in repr(hidden)
    assert CANARY in "".join(secrets_in(value))
    assert fill(hidden, value) == value
    assert hide(hidden) == hidden


def test_what_has_no_secret_is_left_as_it_is() -> None:
    value = {"to": ["ada"], "n": 5, "text": "see https://example.com/?page=2", "json": '{"a": 1}'}
    assert hide(value) == value
    text = (
        "ValueError: unexpected token: 'x' is not authorized for the secretary, token 5 at line 3"
    )
    assert redact(text) == text.replace("token: 'x'", f"token: '{HIDDEN}'")


@pytest.mark.parametrize(
    "value",
    [
        "https://host:8080/users/bob@example.com",
        "https://host:8080?to=bob@example.com",
        "Reset it here: https://app.example/reset?token=8f3a. Or write to https://u:pw@old.example",
    ],
)
def test_a_text_that_tells_calls_apart_is_kept_whole(value: str) -> None:
    assert hide({"body": value}) == {"body": value}


def test_a_long_list_of_urls_takes_no_longer_than_its_length() -> None:
    began, urls = time.process_time(), "http://a:80/" * 40_000
    redact(urls)
    assert time.process_time() - began < 20  # it would be five minutes
    assert hide(urls) == urls
    assert not [*secrets_in(urls)]


@pytest.mark.parametrize(
    ("recorded", "present"),
    [
        (["a", {"token": CANARY}], ["b", {"token": CANARY}]),
        (f"https://u:{CANARY}@host/a", f"https://u:{CANARY}@host/b"),
        (f"https://host/a?api_key={CANARY}", f"https://host/b?api_key={CANARY}"),
        (json.dumps({"to": "a", "token": CANARY}), json.dumps({"to": "b", "token": CANARY})),
    ],
)
def test_a_value_that_cannot_be_filled_is_not_used_without_its_secrets(
    recorded: Any, present: Any
) -> None:
    assert fill({"to": "ann", "what": hide(recorded)}, {"to": "bob", "what": present}) == {
        "to": "ann",
        "what": present,
    }
    assert fill(["ann"], ["bob"]) == ["ann"]  # nothing was hidden: what is recorded counts


@pytest.mark.parametrize(
    "text",
    [
        "401 for {'Authorization': 'Bearer %s'}",
        'sent {"x-api-key": "%s", "to": "ada"}',
        "Authorization: Bearer %s",
        "password=%s host=db",
        "Cookie: %s",
        "could not reach postgresql://ada:%s@db/agents",
        "GET https://example.com/?api_key=%s failed",
        "headers=[('x-api-key', '%s'), (b'authorization', b'%s')]",
        '"{\\"client_secret\\": \\"%s\\"}"',
        "curl -H 'Authorization: Basic %s='",
    ],
)
def test_what_looks_like_a_secret_is_not_in_a_text(text: str) -> None:
    assert CANARY not in redact(text.replace("%s", CANARY))


def test_a_secret_of_a_call_is_removed_in_every_spelling() -> None:
    secrets = set(secrets_in({"Authorization": "Bearer a b/c+d"}))
    for text in ("a b/c+d", "a%20b%2Fc%2Bd", "Bearer a b/c+d"):
        assert "b/c" not in redact(f"it was {text}!", secrets)
        assert "b%2Fc" not in redact(f"it was {text}!", secrets)


# -- in a run


# -- URLs


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:%s[@db/agents",
        "postgresql://ada:%s/x@db/agents",
        "postgresql://ada:%s@x@db/agents",
        "postgresql://ada:%s%zz@db/agents",
        "postgresql://ada:%s?x@db/agents",
        "postgresql://ada:%s#x@db/agents",
        "postgresql://ada:x@[::1/agents?password=%s",
        "postgresql://ada:x%s:y@db:port/agents",
        "postgres://ada:%s@db/agents?nonsense=1",
        "postgresql+psycopg://ada:%s@db/agents",
        "mysql://ada:%s@db/agents",
        "://ada:%s@db/agents",
        "ada:%s@db/agents",
        "//ada:%s@db",
        "sqlite://ada:%s@/agents.db",
        "sqlite:///agents.db?password=%s",
        "postgresql://ada:%s\u2100@db/agents",
        b"postgresql://ada:%s@db/agents",
    ],
    ids=repr,
)
def test_a_malformed_url_never_shows_its_password(
    url: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {**(connect_later.__kwdefaults__ or {}), "deadline": 0.5}
    monkeypatch.setattr(connect_later, "__kwdefaults__", defaults)
    secret = CANARY.encode() if isinstance(url, bytes) else CANARY
    given = url.replace(b"%s" if isinstance(url, bytes) else "%s", secret)
    connect = partial(perdure.connect, deadline=0.5)
    for attempt in (connect, lambda one: perdure.Client(one).setup()):
        with pytest.raises((BadURL, Unavailable)) as told:
            attempt(given)
        error: BaseException | None = told.value
        while error is not None:
            assert CANARY not in repr(error) + str(error)
            assert error.__cause__ is None or error.__context__ is error.__cause__
            error = error.__cause__ or error.__context__
    if isinstance(given, str):
        assert "://" not in given or CANARY not in perdure.Client(given).url
        refused = commands_at(capsys, given)("runs")
        assert refused.code == 2
        assert CANARY not in refused.out + refused.err


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:%s[@db/agents",
        "postgresql://ada:x/%s@db/agents",
        "postgresql://ada:x@%s@db/agents",
        "postgresql://ada:%s%zz@db/agents",
        "sqlite://ada:%s@/agents.db",
        "://ada:%s@db/agents",
    ],
)
def test_nor_does_the_source_of_an_import(url: str) -> None:
    with perdure.Saver("sqlite:///:memory:") as saver, pytest.raises(perdure.Error) as told:
        import_threads(url.replace("%s", CANARY), saver)
    assert CANARY not in str(told.value)


def test_the_url_of_a_client_shows_neither_password() -> None:
    for url in ("postgresql://ada:p@ss@db/x", "postgresql://db/x?user=ada&password=ss"):
        assert "ss" not in perdure.Client(url).url.replace("password", "")
    assert hide_in_url("https://example.com:80/a?b=c") == "https://example.com:80/a?b=c"
