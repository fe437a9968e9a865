"""`check` tries the mail account before anybody is written to, and says what to do."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import AuthResult

from examples.campaign.app import App, Plan
from examples.campaign.postoffice import Fault, PostOffice, Reply, Stage, scripted
from examples.campaign.settings import Settings
from tests.examples.test_campaign_mail import HOST
from tests.examples.test_campaign_mail import certificate as certificate
from tests.support.campaign_commands import say
from tests.support.imap_server import PASSWORD, USER, MailServer

ANA = "Ana Ruiz <ana@example.com>"
Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Check:
    """Say `check` with these settings and words. Gives its exit code and what it printed."""

    def run(*words: str, port: int, **settings: Any) -> tuple[int, str]:
        given = {"url": f"sqlite:///{tmp_path}/campaign.db", "smtp_port": port, **settings}
        with monkeypatch.context() as patch:
            for name, value in given.items():
                patch.setenv(f"CAMPAIGN_{name.upper()}", str(value))
            return say(patch, capsys, "check", *words)

    return run


def test_a_check_goes_as_far_as_the_sender_and_sends_nothing(check: Check, tmp_path: Path) -> None:
    with PostOffice() as office:
        with App(Settings(url=f"sqlite:///{tmp_path}/campaign.db")) as app:
            app.create(Plan("spring", "Tables", ANA))
            app.create(Plan("autumn", "Chairs", "eva@example.com"))
            app.create(Plan("winter", "Lamps", ANA))
        code, told = check(port=office.smtp_port)
        assert code == 0, told
        assert f"OK    connected to {HOST}:{office.smtp_port}\n" in told
        assert "WARN  not encrypted: your mails can be read on the way\n" in told
        assert told.count("OK    may send from") == 2
        assert "OK    nothing was sent" in told
        senders = [(mail.sender, mail.recipient) for mail in office.conversations]
        assert senders == [("ana@example.com", ""), ("eva@example.com", "")]
        assert office.log == []


def test_a_check_sends_one_mail_on_request(check: Check) -> None:
    with PostOffice() as office:
        code, told = check("--to", "me@example.org", "--sender", ANA, port=office.smtp_port)
        assert (code, "OK    sent a test mail to me@example.org" in told) == (0, True)
        [mail] = office.log
        assert (mail.sender, mail.recipient) == ("ana@example.com", "me@example.org")
        assert "the account works" in mail.content


def test_a_check_warns_about_missing_settings(check: Check) -> None:
    with PostOffice() as office:
        code, told = check(port=office.smtp_port)
        warned = [line.split()[1] for line in told.splitlines() if line.startswith("WARN")]
        names = ["IMAP_HOST", "LOOKUP_URL", "UNSUBSCRIBE", "WEB_URL", "MODEL"]
        assert warned == ["not", "no", *(f"CAMPAIGN_{name}" for name in names)]
        assert "--sender" in told  # there is no campaign yet
        code, told = check(
            *("--sender", ANA),
            port=office.smtp_port,
            lookup_url=office.lookup_url,
            unsubscribe="leave@example.org",
            web_url="https://mail.example.org",
            model="openai:gpt-5",
        )
        assert (code, told.count("WARN")) == (0, 2)


@pytest.mark.parametrize(
    ("refuses", "words", "advice"),
    [
        (Reply("554 5.7.1 Not you", Stage.CONNECT), (), "takes no mail from you"),
        (Reply("550 5.1.8 Not you", Stage.SENDER), (), "may not send from this address"),
        (Reply("530 5.7.0 Must issue STARTTLS first", Stage.SENDER), (), "SMTP_STARTTLS=yes"),
        (Reply("530 5.7.57 Not authenticated", Stage.SENDER), (), "set CAMPAIGN_SMTP_USER"),
        (Reply("450 4.7.1 Greylisted"), ("--to", "me@example.org"), "try again"),
        (Reply("550 5.1.1 Unknown"), ("--to", "me@example.org"), "not know the address of --to"),
        (Reply("550 relay not permitted"), ("--to", "me@example.org"), "takes no mail from you"),
        (Reply("554 Spam", Stage.CONTENT), ("--to", "me@example.org"), "text of the test mail"),
    ],
    ids=lambda value: value.text if isinstance(value, Reply) else "",
)
def test_a_check_says_what_to_do_about_a_refusal(
    check: Check, refuses: Reply, words: tuple[str, ...], advice: str
) -> None:
    with PostOffice() as office:
        office.refuses = refuses
        code, told = check("--sender", ANA, *words, port=office.smtp_port)
        failure = told.partition("FAIL  ")[2].partition("WARN")[0]
        assert code == 2
        assert refuses.text in failure
        assert advice in failure
        assert office.log == []


def test_a_check_says_what_is_wrong_with_the_address_of_the_server(check: Check) -> None:
    with PostOffice(scripted({("me@example.org", 1): Fault.DROP_AFTER})) as office:
        port = office.smtp_port
        code, told = check("--to", "me@example.org", "--sender", ANA, port=port)
        assert (code, "check whether it arrived" in told) == (2, True)
        assert check("--sender", "Ana", port=port)[0] == 2
        assert "no campaign" in check("--to", "me@example.org", port=port)[1]
        code, told = check("--to", "me", "--sender", ANA, port=port)
        assert (code, "recipient is invalid: 'me'" in told) == (2, True)
    code, told = check(port=port)
    assert (code, "nothing listens there: check CAMPAIGN_SMTP_HOST" in told) == (2, True)
    code, told = check(port=port, smtp_host="no-such-host.invalid")
    assert (code, "there is no such host" in told) == (2, True)


def test_a_check_says_how_to_encrypt_and_whether_the_password_is_right(
    check: Check, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    proof.load_cert_chain(certificate)
    heard: list[bytes] = []

    def authenticator(_: Any, __: Any, ___: Any, mechanism: str, data: Any) -> AuthResult:
        heard.append(data.password)
        return AuthResult(success=data.password == b"secret", handled=False)

    login = {"smtp_user": "ana", "smtp_password": "secret", "smtp_host": "localhost"}
    options = {"tls_context": proof, "authenticator": authenticator}
    with PostOffice(smtp_options=options) as office:

        def told(**settings: Any) -> str:
            code, told = check("--sender", ANA, port=office.smtp_port, **{**login, **settings})
            assert code == (2 if "FAIL" in told else 0)
            return told

        assert "The server offers STARTTLS: set CAMPAIGN_SMTP_STARTTLS=yes" in told()
        assert "The server offers STARTTLS" in told(smtp_user="")
        assert "CAMPAIGN_SMTP_HOST must be the name in it" in told(smtp_starttls="yes")
        assert "set CAMPAIGN_SMTP_STARTTLS=yes instead of" in told(smtp_tls="yes")
        assert heard == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        wrong = told(smtp_starttls="yes", smtp_password="wrong")
        assert "the user or password is wrong: check CAMPAIGN_SMTP_USER" in wrong
        right = told(smtp_starttls="yes")
        assert "OK    encrypted with TLS" in right
        assert "OK    logged in as ana" in right
        assert "secret" not in right
        assert "not logged in, although" in told(smtp_starttls="yes", smtp_user="")
    options = {"auth_require_tls": False, "authenticator": authenticator}
    with PostOffice(smtp_options=options, tls=proof) as office:
        right = told(smtp_tls="yes")
        assert "OK    encrypted with TLS" in right
        assert "OK    logged in as ana" in right
        assert "set CAMPAIGN_SMTP_TLS=yes" in told(smtp_timeout=0.3)
    with PostOffice() as office:
        assert "offers no STARTTLS on this port" in told(smtp_starttls="yes")
        assert "the server offers no login here" in told()


def test_only_one_way_to_encrypt_may_be_set() -> None:
    both = {"CAMPAIGN_SMTP_TLS": "yes", "CAMPAIGN_SMTP_STARTTLS": "yes"}
    with pytest.raises(SystemExit, match="are both set"):
        Settings.read(both)
    assert Settings.read({**both, "CAMPAIGN_SMTP_STARTTLS": "no"}).smtp_tls


def test_a_check_tries_the_mailbox(check: Check) -> None:
    with PostOffice() as office, MailServer() as server:
        account: dict[str, Any] = {
            "imap_host": HOST,
            "imap_port": server.port,
            "imap_tls": "no",
            "imap_user": USER,
            "imap_password": PASSWORD,
            "unsubscribe": USER,
        }
        code, told = check("--sender", ANA, port=office.smtp_port, **account)
        assert code == 0, told
        assert f"OK    connected to {HOST}:{server.port} for incoming mail\n" in told
        assert "WARN  not encrypted, so the password can be read" in told
        assert f"OK    logged in as {USER}\nOK    INBOX has 0 mails" in told
        assert "Set ana+unsubscribe@example.com" in told

        code, told = check(
            "--sender", ANA, port=office.smtp_port, **{**account, "imap_password": "wrong"}
        )
        assert code == 2
        assert f"FAIL  logging in as {USER}: [AUTHENTICATIONFAILED]" in told
        assert "want an app password" in told


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("UNSUBSCRIBE", "unsubscribe", "is not an address"),
        ("UNSUBSCRIBE", "", "it has no address"),
        ("UNSUBSCRIBE", f"{'u' * 50}@example.com", "is not an address"),  # no room for a token
        ("WEB_URL", "mail.example.com", "not the start of a link"),
        ("WEB_URL", "https://", "not the start of a link"),
        ("WEB_URL", "https://mail.example.com/?a=b", "not the start of a link"),
        ("WEB_URL", "https://münchen.example", "not the start of a link"),
    ],
)
def test_a_way_out_that_a_mail_cannot_have_is_refused_by_its_name(
    name: str, text: str, told: str
) -> None:
    with pytest.raises(SystemExit, match=f"^CAMPAIGN_{name}=.*{told}"):
        Settings.read({f"CAMPAIGN_{name}": text})


def test_a_way_out_that_a_mail_can_have_is_taken() -> None:
    read = Settings.read(
        {
            "CAMPAIGN_UNSUBSCRIBE": "Ana+Unsubscribe@München.example",
            "CAMPAIGN_WEB_URL": "http://127.0.0.1:8000/mail/",
        }
    )
    assert read.unsubscribe == "ana+unsubscribe@xn--mnchen-3ya.example"
    assert read.web_url == "http://127.0.0.1:8000/mail/"
    assert Settings.read({"CAMPAIGN_WEB_URL": ""}).web_url == ""


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("CAMPAIGN_SMTP_STARTTLS", "ja", "yes or no"),
        ("CAMPAIGN_SMTP_PORT", "smtp", "a whole number"),
        ("CAMPAIGN_SMTP_TIMEOUT", "long", "a number"),
        ("CAMPAIGN_APART", "-1", "a whole number, 0 or more"),
        ("CAMPAIGN_DOMAIN_PAUSE", "inf", "a number, 0 or more"),
        ("CAMPAIGN_LOOKUP_AFTER", "nan", "a number, 0 or more"),
    ],
)
def test_an_invalid_setting_is_refused(name: str, text: str, wanted: str) -> None:
    with pytest.raises(SystemExit, match=f"{name}='{text}' is not {wanted}"):
        Settings.read({name: text})
