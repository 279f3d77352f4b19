"""Whom a message may reach: nothing inside, however it is spelled."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import trainwatch
from tests.server.receiver import Answered, Receiver, receiving
from trainwatch.server.delivery import http
from trainwatch.server.delivery.addresses import Forbidden, Guard
from trainwatch.server.delivery.kinds import Context
from trainwatch.server.delivery.notice import Message
from trainwatch.server.delivery.registry import KINDS
from trainwatch.server.delivery.retry import Answer
from trainwatch.server.delivery.through_apprise import SERVICES, scrub

NOW = 1_700_000_000.0


def post(url: str, guard: Guard | None = None, seconds: float = 10.0) -> Answer:
    return http.post(url, b"{}", {}, guard=guard or Guard(), now=NOW, seconds=seconds)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0x7f.1",
        "0",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
    ],
)
def test_no_spelling_of_this_machine_is_reached(receiver: Receiver, host: str) -> None:
    answer = post(f"http://{host}:{receiver.port}/hook")
    assert answer.verdict == "disable", answer
    assert "not a public address" in answer.error
    assert receiver.taken == []


INSIDE = """10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 240.0.0.1 255.255.255.255
    192.0.2.1 198.18.0.1 ::1 :: fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 ff02::1 ::ffff:10.0.0.1 2002:7f00:1::
    64:ff9b::7f00:1 64:ff9b:1::1 2001:0:1::1 2001:db8::1"""


@pytest.mark.parametrize(
    "address",
    INSIDE.split(),
)
def test_what_is_not_public(address: str) -> None:
    with pytest.raises(Forbidden, match="not a public address"):
        Guard().check(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_what_is_public(address: str) -> None:
    Guard().check(address)


def test_a_name_that_leads_inside_is_not_reached(receiver: Receiver) -> None:
    name = socket.gethostname()
    inside = {entry[4][0] for entry in socket.getaddrinfo(name, None)}
    with pytest.raises(Forbidden):
        Guard().resolve(name, receiver.port)
    assert inside
    assert post(f"http://{name}:{receiver.port}/").verdict == "disable"


def test_what_the_settings_allow_is_reached(receiver: Receiver) -> None:
    for allowed in ("127.0.0.1", "127.0.0.0/8", "localhost"):
        host = "localhost" if allowed == "localhost" else "127.0.0.1"
        assert post(f"http://{host}:{receiver.port}/", Guard([allowed])).verdict == "sent"
    assert post(f"http://127.0.0.1:{receiver.port}/", Guard(["10.0.0.0/8", "localhost"])).verdict == "disable"
    for wrong in ("http://127.0.0.1", "10.0.0.0/99", "a b", "127.0.0.1:80"):
        with pytest.raises(ValueError, match="neither a name nor"):
            Guard([wrong])


class Rebinding(Guard):
    """What a name server tells the guard; it would tell whoever asks again something else."""

    def resolve(self, host: str, port: int) -> list[str]:
        assert host == "rebind.invalid"
        return ["127.0.0.1"]


def test_the_address_that_was_checked_is_the_one_that_is_reached(receiver: Receiver) -> None:
    """The name has no address at all: were it resolved a second time, nothing would be reached."""
    assert post(f"http://rebind.invalid:{receiver.port}/", Rebinding()).verdict == "sent"
    assert receiver.taken[0].headers["host"] == f"rebind.invalid:{receiver.port}"


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    with receiving() as inside:
        receiver.script = [Answered(307, {"Location": inside.url})]
        answer = post(receiver.url, Guard(["127.0.0.1"]))
        assert inside.taken == []
    assert (answer.verdict, answer.status) == ("disable", 307)
    assert "redirect" in answer.error


def test_no_more_of_an_answer_is_read_than_is_needed(receiver: Receiver) -> None:
    receiver.script = [Answered(500, body=b"x" * 20_000_000)]
    answer = post(receiver.url, Guard(["127.0.0.1"]))
    assert (answer.verdict, len(answer.error)) == ("retry", len("The receiver answered 500: ") + 200)


def test_an_answer_that_comes_a_byte_at_a_time_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                while not done.wait(0.05):
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        answer = post(f"http://127.0.0.1:{listening.getsockname()[1]}/", Guard(["127.0.0.1"]), seconds=1.0)
        done.set()
        thread.join(10)
    assert answer.verdict == "retry"


def test_a_certificate_is_checked(receiver: Receiver) -> None:
    answer = post(f"https://127.0.0.1:{receiver.port}/", Guard(["127.0.0.1"]))
    assert answer.verdict == "retry"
    assert receiver.taken == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://example.org/",
        "https://",
        "https://user:password@example.org/",
        "https://example.org:99999/",
        "https://exa mple.org/",
        "https://[::1/",
        "https://example.org/\r\nX-Evil: 1",
        f"https://{'a' * 70}.org/",
        "",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        http.parse(url)
    assert post(url).verdict == "disable"


MESSAGE = Message(id="id", kind="test", created_at=NOW, language="en", channel="x")


def through_apprise(url: str, *allowed: str) -> Answer:
    return KINDS["apprise"].send({"url": url}, MESSAGE, Context(Guard(allowed), NOW))


@pytest.mark.parametrize(
    "url",
    [
        "ntfy://127.0.0.1:{port}/topic",
        "ntfy://2130706433:{port}/topic",
        "gotify://localhost:{port}/token123456",
        "mailto://someone:password@example.org?smtp=127.0.0.1&port={port}",
        "matrix://user:password@[::1]:{port}/#room",
    ],
)
def test_apprise_reaches_nothing_inside(receiver: Receiver, url: str) -> None:
    answer = through_apprise(url.format(port=receiver.port))
    assert answer.verdict == "disable", answer
    assert "may not be reached" in answer.error
    assert receiver.taken == []


def test_apprise_follows_no_redirect_inside(receiver: Receiver) -> None:
    with receiving() as inside:
        receiver.script = [Answered(307, {"Location": inside.url})]
        answer = through_apprise(f"ntfy://127.0.0.1:{receiver.port}/topic", "127.0.0.1")
        assert (answer.verdict, inside.taken) != ("sent", [])
        assert inside.taken == []


def test_e_mail_goes_out_through_a_mail_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        said: list[str] = []
        thread = threading.Thread(target=take_mail, args=(listening, said))
        thread.start()
        port = listening.getsockname()[1]
        url = f"mailto://127.0.0.1:{port}?from=watch@example.org&to=team@example.org&mode=insecure"
        answer = through_apprise(url, "127.0.0.1")
        thread.join(20)
    assert answer.verdict == "sent", answer
    text = "\n".join(said)
    assert "rcpt to:<team@example.org>" in text.lower()
    assert "This is a test of the channel x." in text


def take_mail(listening: socket.socket, said: list[str]) -> None:
    """Speaks as much of SMTP as one message needs."""
    connection, _ = listening.accept()
    with connection, connection.makefile("rwb") as lines:

        def answer(text: str) -> None:
            lines.write(f"{text}\r\n".encode())
            lines.flush()

        answer("220 here")
        in_message = False
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip()
            said.append(line)
            if in_message:
                if line == ".":
                    in_message = False
                    answer("250 taken")
            elif line.upper().startswith("DATA"):
                in_message = True
                answer("354 go on")
            elif line.upper().startswith("QUIT"):
                answer("221 bye")
                return
            else:
                answer("250 yes")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("json://example.org/", "webhook or slack"),
        ("https://example.org/", "webhook or slack"),
        ("syslog://", "begins like"),
        ("dbus://x", "cannot be used"),
        ("windows://x", "cannot be used"),
        ("nonsense", "begins like"),
        ("mailto://a:b@example.org?pgp=/etc/passwd", "names a file"),
        ("discord://1234567890/abcdefghij?template=/etc/passwd", "names a file"),
        ("tgram://123456789:abcdefg_hijklmnop/1?Template=/etc/passwd", "names a file"),
        # Apprise takes these for options, too.
        ("workflows://example.org:443/aaaa/bbbb/?x=1;template=/etc/passwd", "names a file"),
        ("workflows://example.org:443/aaaa/bbbb/?template%20=/etc/passwd", "names a file"),
        ("workflows://example.org:443/aaaa/bbbb/#?template=/etc/passwd", "names a file"),
        ("fcm://project/#device?keyfile=/etc/passwd", "names a file"),
    ],
)
def test_what_apprise_may_not(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        KINDS["apprise"].check({"url": url})
    assert through_apprise(url).verdict == "disable"


def test_the_process_of_apprise_starts_nothing() -> None:
    code = (
        "import sys, subprocess\n"
        "from trainwatch.server.delivery.apprise_process import watch\n"
        "from trainwatch.server.delivery.addresses import Guard\n"
        "sys.addaudithook(watch(Guard(), []))\n"
        "try:\n    subprocess.run(['true'])\n"
        "except Exception as error:\n    print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Forbidden\n"


def test_the_process_of_apprise_reads_no_file_of_the_server(tmp_path: Path) -> None:
    """Also if an option that names one got past the check of the address."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "message", "attachments": ["SECRET"]}')
    code = (
        "import json, logging, sys\n"
        "from trainwatch.server.delivery import apprise_process\n"
        "logging.basicConfig(stream=sys.stdout, level=logging.WARNING)\n"
        "url = 'workflows://127.0.0.1:9/' + 'a' * 32 + '/' + 'b' * 43 + '/?template=' + sys.argv[1]\n"
        "wanted = {'url': url, 'body': 'b', 'title': 't', 'type': 'info', 'allowed': []}\n"
        "print(json.dumps(apprise_process.deliver(wanted)))\n"
        "try:\n    open(sys.argv[1])\n"
        "except PermissionError as error:\n    print(error)\n"
    )
    said = []
    for path in (secret, tmp_path / "absent.json"):
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        assert "SECRET" not in done.stdout + done.stderr
        assert json.loads(done.stdout.splitlines()[-2])["sent"] is False
        assert done.stdout.splitlines()[-1] == "a channel may not open a file of the server"
        said.append(done.stdout.replace(str(path), "PATH"))
    assert said[0] == said[1]  # not even whether it is there


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Apprise looks through all of its own modules
def test_the_names_of_services_are_those_that_apprise_has() -> None:
    from apprise.manager_plugins import NotificationManager

    assert {name for name in SERVICES if name not in NotificationManager()} <= {"msteams"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_addresses_in_the_documentation_are_addresses() -> None:
    import apprise

    page = (Path(trainwatch.__file__).parent.parent / "docs/alerts.md").read_text("utf-8")
    part = page.partition("## Everything else: Apprise")[2].partition("\n## ")[0]
    urls = re.findall(r"`([a-z0-9]+://[^`]+)`", part)
    assert len(urls) > 20
    for url in urls:
        KINDS["apprise"].check({"url": url})
        assert apprise.Apprise.instantiate(url) is not None, url


def test_what_is_secret_in_an_address_is_in_no_error() -> None:
    url = "discord://1234567890/AbCdEf%2BGh?avatar=yes"
    assert scrub("cannot post to 1234567890/AbCdEf%2BGh, AbCdEf+Gh", url) == "cannot post to …/…, …"


def test_addresses_are_masked() -> None:
    masked = {
        ("slack", "https://hooks.slack.com/services/T0/B0/secret"): "https://hooks.slack.com/…",
        ("webhook", "http://10.0.0.1:8080/secret?token=secret"): "http://10.0.0.1:8080/…",
        ("apprise", "mailto://user:secret@example.org"): "mailto://…",
    }
    for (kind, url), wanted in masked.items():
        assert KINDS[kind].mask({"url": url}) == wanted
