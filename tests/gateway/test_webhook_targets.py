"""Where webhooks may go: nothing but public addresses, in one spelling, and those that were checked are those connected to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest

from gateway.webhooks.model import ErrorClass, Outcome
from gateway.webhooks.sender import Sender
from gateway.webhooks.targets import (
    TargetPolicy,
    UrlRefused,
    check_addresses,
    parse_origin,
    parse_private_networks,
    parse_target,
)
from tests.gateway.receiver import Answer, Receiver, always, receiving

PUBLIC = TargetPolicy()
OPENED = TargetPolicy(ports=(), private_networks=parse_private_networks(["127.0.0.0/8", "10.0.0.0/8", "fc00::/7"]))
EVERYTHING = TargetPolicy(
    ports=(),
    private_networks=parse_private_networks(
        ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "::1/128"]
    ),
)


def reason(url: str, policy: TargetPolicy = PUBLIC, *, allow_insecure: bool = False) -> str | None:
    try:
        parse_target(url, policy, allow_insecure=allow_insecure)
    except UrlRefused as refused:
        return refused.reason
    return None


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("https://example.com", "example.com", 443, "/"),
        ("HTTPS://Example.COM:8443/a/b?c=d&e=%20", "example.com", 8443, "/a/b?c=d&e=%20"),
        ("https://example.com./x", "example.com", 443, "/x"),
        ("https://bücher.example/ä?ö=ü", "xn--bcher-kva.example", 443, "/%C3%A4?%C3%B6=%C3%BC"),
        ("https://例え.テスト/", "xn--r8jz45g.xn--zckzah", 443, "/"),
        ("https://8.8.8.8/x", "8.8.8.8", 443, "/x"),
        ("https://[2606:4700:0:0::1111]/", "2606:4700::1111", 443, "/"),
        ("https://under_score.example/", "under_score.example", 443, "/"),
    ],
)
def test_plain_address_is_taken_apart(url: str, host: str, port: int, path: str) -> None:
    target = parse_target(url, PUBLIC, allow_insecure=False)
    assert (target.scheme, target.host, target.port, target.path) == ("https", host, port, path)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "scheme"),
        ("ftp://example.com/", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("gopher://example.com:443/", "scheme"),
        ("//example.com/", "scheme"),
        ("https:///x", "host"),
        ("https://user@example.com/", "userinfo"),
        ("https://user:secret@example.com/", "userinfo"),
        ("https://8.8.8.8@127.0.0.1/", "userinfo"),
        ("https://example.com:80/", "port"),
        ("https://example.com:22/", "port"),
        ("https://example.com:99999/", "malformed"),
        ("https://example.com:x/", "malformed"),
        ("https://example.com/#part", "malformed"),
        ("https://exa mple.com/", "malformed"),
        ("https://example.com\\@127.0.0.1/", "malformed"),
        ("https://example.com\t/", "malformed"),
        ("https://example.com/\r\nHost: other", "malformed"),
        ("https://exam\u3000ple.com/", "malformed"),
        ("https://[::1/", "malformed"),
        ("https://%31%32%37.0.0.1/", "host"),
        ("https://-example.com/", "host"),
        ("https://exa..mple.com/", "host"),
        (f"https://{'a' * 64}.com/", "host"),
        (f"https://example.com/{'a' * 2000}", "too_long"),
        # Spellings of 127.0.0.1 and the like that resolvers understand.
        ("https://2130706433/", "host"),
        ("https://0x7f000001/", "host"),
        ("https://0x7f.0.0.1/", "host"),
        ("https://0177.0.0.1/", "host"),
        ("https://127.1/", "host"),
        ("https://127.0.1/", "host"),
        ("https://0/", "host"),
        ("https://127.0.0.01/", "host"),
        ("https://256.0.0.1/", "host"),
        ("https://1.2.3.4.5/", "host"),
        ("https://example.0x10/", "host"),
        ("https://１２７.０.０.１/", "address"),
        ("https://127。0。0。1/", "address"),
        ("https://①②⑦.⓪.⓪.①/", "address"),
        ("https://127.0.0.1./", "address"),
        ("https://127.0.0.1:8443/", "address"),
        ("https://[::1]/", "address"),
        ("https://[::ffff:127.0.0.1]/", "address"),
        ("https://[::ffff:7f00:1]/", "address"),
        ("https://[fe80::1%25eth0]/", "host"),
        ("https://169.254.169.254/latest/meta-data/", "address"),
    ],
)
def test_address_is_refused(url: str, why: str) -> None:
    assert reason(url) == why


ADDRESSES = [
    ("8.8.8.8", True, True),
    ("1.1.1.1", True, True),
    ("2606:4700::1111", True, True),
    ("2a00:1450:4001:80b::200e", True, True),
    ("127.0.0.1", False, True),
    ("127.255.255.254", False, True),
    ("10.1.2.3", False, True),
    ("172.16.0.1", False, True),
    ("172.31.255.255", False, True),
    ("192.168.1.1", False, True),
    ("100.64.0.1", False, True),  # carrier-grade NAT
    ("::1", False, True),
    ("fd12:3456::1", False, True),
    # Never, whatever is opened.
    ("169.254.169.254", False, False),
    ("169.254.0.1", False, False),
    ("100.100.100.200", False, False),
    ("168.63.129.16", False, False),
    ("192.0.0.192", False, False),
    ("fd00:ec2::254", False, False),
    ("fe80::1", False, False),
    ("fe80::1%eth0", False, False),
    ("fec0::1", False, False),
    ("0.0.0.0", False, False),
    ("0.1.2.3", False, False),
    ("224.0.0.1", False, False),
    ("239.255.255.255", False, False),
    ("240.0.0.1", False, False),
    ("255.255.255.255", False, False),
    ("192.0.0.1", False, False),
    ("192.0.2.1", False, False),
    ("198.18.0.1", False, False),
    ("198.51.100.7", False, False),
    ("203.0.113.9", False, False),
    ("192.88.99.1", False, False),  # 6to4 relay
    ("::", False, False),
    ("::ffff:8.8.8.8", False, False),  # IPv4-mapped
    ("::ffff:127.0.0.1", False, False),
    ("::ffff:10.0.0.1", False, False),
    ("::8.8.8.8", False, False),  # IPv4-compatible
    ("64:ff9b::8.8.8.8", False, False),  # NAT64
    ("64:ff9b::7f00:1", False, False),
    ("64:ff9b:1::1", False, False),
    ("2002:7f00:1::", False, False),  # 6to4
    ("2002:808:808::1", False, False),
    ("2001::1", False, False),  # Teredo
    ("2001:db8::1", False, False),
    ("3fff::1", False, False),
    ("100::1", False, False),
    ("5f00::1", False, False),
    ("ff02::1", False, False),
    ("4000::1", False, False),
    ("no address", False, False),
]


@pytest.mark.parametrize(("address", "public", "opened"), ADDRESSES, ids=[row[0] for row in ADDRESSES])
def test_only_public_addresses_are_connected_to_unless_the_operator_opens_a_private_range(
    address: str, public: bool, opened: bool
) -> None:
    def is_allowed(policy: TargetPolicy, *beside: str) -> bool:
        try:
            check_addresses([*beside, address], policy)
        except UrlRefused:
            return False
        return True

    assert (is_allowed(PUBLIC), is_allowed(EVERYTHING)) == (public, opened)
    assert is_allowed(PUBLIC, "8.8.8.8") == public, "one bad address among good ones refuses all"


@pytest.mark.parametrize(
    "network", ["169.254.0.0/16", "0.0.0.0/0", "fe80::/10", "8.8.8.0/24", "::/0", "128.0.0.0/1", "x"]
)
def test_nothing_but_private_ranges_can_be_opened(network: str) -> None:
    with pytest.raises(ValueError):
        parse_private_networks([network])


@pytest.mark.parametrize(
    ("url", "allow_insecure", "policy", "why"),
    [
        ("http://10.0.0.5:8080/", True, OPENED, None),
        ("http://hooks.internal:8080/", True, OPENED, None),
        ("http://10.0.0.5:8080/", False, OPENED, "scheme"),
        ("http://10.0.0.5/", True, PUBLIC, "scheme"),
        ("http://192.168.0.5/", True, OPENED, "address"),
        ("https://127.0.0.1:9999/", False, OPENED, None),
        ("https://2130706433/", False, OPENED, "host"),
        ("http://169.254.169.254/", True, EVERYTHING, "address"),
    ],
)
def test_plain_http_needs_both_the_operator_and_the_endpoint(
    url: str, allow_insecure: bool, policy: TargetPolicy, why: str | None
) -> None:
    assert reason(url, policy, allow_insecure=allow_insecure) == why


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://Hooks.Example.com", "https://hooks.example.com"),
        ("https://hooks.example.com:443/", "https://hooks.example.com"),
        ("https://hooks.example.com:8443", "https://hooks.example.com:8443"),
        ("https://[2606:4700::1111]:8443", "https://[2606:4700::1111]:8443"),
        ("https://hooks.example.com./", "https://hooks.example.com"),
    ],
)
def test_origin_has_one_spelling(text: str, origin: str) -> None:
    assert parse_origin(text, PUBLIC) == origin


def test_origin_has_no_path() -> None:
    with pytest.raises(UrlRefused, match="scheme, host and port only"):
        parse_origin("https://hooks.example.com/path", PUBLIC)


class Names:
    """A name server that answers by a script: one answer per look-up, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def send(url: str, names: Names, policy: TargetPolicy = OPENED, **more: float) -> Outcome:
    async def attempt() -> Outcome:
        sender = Sender(policy, resolve=names, **more)  # type: ignore[arg-type]
        return await sender.send(url, headers={"webhook-id": "evt_1"}, body=b'{"a":1}', allow_insecure=True)

    return asyncio.run(attempt())


def test_connection_goes_to_the_address_that_was_checked_under_the_original_host() -> None:
    names = Names(["127.0.0.1"])
    with receiving() as receiver:
        outcome = send(f"http://hooks.example:{receiver.port}/x?y=1", names)
    assert outcome.is_success, outcome
    assert names.asked == ["hooks.example"], "resolved once: a second answer would be another address"
    (request,) = receiver.received
    assert request.headers["host"] == f"hooks.example:{receiver.port}"
    assert (request.path, request.body) == ("/x?y=1", b'{"a":1}')


def test_name_that_changes_between_attempts_is_checked_at_each() -> None:
    names = Names(["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1", "10.0.0.1", "192.168.0.1"])
    with receiving() as receiver:
        outcomes = [send(f"http://rebinding.example:{receiver.port}/", names) for _ in range(3)]
        assert [outcome.error for outcome in outcomes] == [None, ErrorClass.REFUSED_URL, ErrorClass.REFUSED_URL]
        assert len(receiver.received) == 1


def test_rebinding_to_loopback_reaches_nothing_on_a_server_without_opened_ranges() -> None:
    with receiving() as receiver:
        policy = TargetPolicy(ports=(receiver.port,))
        outcome = send(f"https://rebinding.example:{receiver.port}/", Names(["127.0.0.1"]), policy)
        assert outcome.error is ErrorClass.REFUSED_URL
        assert receiver.received == []


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_redirect_is_a_failure_and_is_not_followed(status: int) -> None:
    with receiving() as inside:

        def answer(request: object) -> Answer:
            return Answer(status, {"Location": inside.url})

        with receiving(answer) as receiver:
            outcome = send(receiver.url, Names(["127.0.0.1"]))
        assert (outcome.status_code, outcome.error) == (status, ErrorClass.REDIRECT)
        assert inside.received == []


def test_second_address_is_tried_where_the_first_does_not_answer() -> None:
    with receiving() as receiver:
        with socket.socket() as taken:
            taken.bind(("127.0.0.2", 0))
        outcome = send(f"http://two.example:{receiver.port}/", Names(["127.0.0.2", "127.0.0.1"]))
    assert outcome.is_success, outcome


def failing(receiver: Receiver, kind: str) -> Outcome:
    match kind:
        case "nobody listens":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            return send(f"http://127.0.0.1:{port}/", Names(["127.0.0.1"]))
        case "no TLS there":
            return send(f"https://127.0.0.1:{receiver.port}/", Names(["127.0.0.1"]))
        case "too slow":
            return send(receiver.url, Names(["127.0.0.1"]), timeout_s=0.2)
        case _:
            return send("http://nowhere.example/", Names([]))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("nobody listens", ErrorClass.CONNECT),
        ("no TLS there", ErrorClass.TLS),
        ("too slow", ErrorClass.TIMEOUT),
        ("no address", ErrorClass.REFUSED_URL),
    ],
)
def test_failure_to_get_through_has_a_class(kind: str, error: ErrorClass) -> None:
    with receiving(always(after_s=0.5)) as receiver:
        outcome = failing(receiver, kind)
    assert (outcome.status_code, outcome.error) == (None, error)


def test_name_without_an_address_is_told_apart() -> None:
    class Nothing:
        async def __call__(self, host: str, port: int) -> Sequence[str]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def attempt() -> Outcome:
        return await Sender(PUBLIC, resolve=Nothing()).send(
            "https://nowhere.example/", headers={}, body=b"", allow_insecure=False
        )

    assert asyncio.run(attempt()).error is ErrorClass.DNS


def test_answer_that_is_no_http_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        async def both() -> Outcome:
            loop = asyncio.get_running_loop()

            def garbage() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"SSH-2.0-OpenSSH_9\r\n\r\n")

            answering = loop.run_in_executor(None, garbage)
            sender = Sender(OPENED, resolve=Names(["127.0.0.1"]))
            port = server.getsockname()[1]
            outcome = await sender.send(f"http://127.0.0.1:{port}/", headers={}, body=b"x", allow_insecure=True)
            await answering
            return outcome

        assert asyncio.run(both()).error is ErrorClass.PROTOCOL


def test_only_the_first_kilobyte_of_an_answer_is_kept_and_without_secrets() -> None:
    secret = b"whsec_" + b"A" * 40
    body = b'{"token": "tok-123456789", "key": "' + secret + b'", "text": "' + "é".encode() * 3000 + b'"}'
    with receiving(always(500, body=body)) as receiver:
        outcome = send(receiver.url, Names(["127.0.0.1"]))
    assert outcome.error is ErrorClass.SERVER_ERROR
    assert len(outcome.response.encode()) <= 1024
    assert "ééé" in outcome.response
    assert "tok-123456789" not in outcome.response
    assert "whsec_" not in outcome.response


def test_slow_body_behind_a_good_status_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        async def both() -> Outcome:
            loop = asyncio.get_running_loop()
            done = asyncio.Event()

            async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read(4096)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbeginning")
                await writer.drain()
                await done.wait()
                writer.close()

            held = await asyncio.start_server(hold, sock=server)
            sender = Sender(OPENED, resolve=Names(["127.0.0.1"]), timeout_s=0.3)
            began = loop.time()
            outcome = await sender.send(
                f"http://127.0.0.1:{server.getsockname()[1]}/", headers={}, body=b"x", allow_insecure=True
            )
            assert loop.time() - began < 10
            done.set()
            held.close()
            return outcome

        outcome = asyncio.run(both())
    assert (outcome.status_code, outcome.error, outcome.response) == (200, None, "beginning")
