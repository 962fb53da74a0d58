"""A port is taken at once or not at all, and named as it is."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rankwell.core.errors import RankwellError
from rankwell.serve.listening import bind


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_any_free_port_is_said() -> None:
    place = bind("127.0.0.1", 0)
    assert place.port == place.sockets[0].getsockname()[1] > 0
    assert place.url == f"http://127.0.0.1:{place.port}"
    place.close()


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_bracketed() -> None:
    place = bind("::1", 0)
    assert place.url == f"http://[::1]:{place.port}"
    place.close()


def test_all_addresses_of_a_name_have_one_port() -> None:
    place = bind("localhost", 0)
    assert {one.getsockname()[1] for one in place.sockets} == {place.port}
    place.listen()
    with socket.create_connection(("localhost", place.port), timeout=5):
        pass
    place.close()


def test_clients_are_refused_until_it_listens() -> None:
    place = bind("127.0.0.1", 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", place.port), timeout=5)
    place.close()


def test_answers_are_sent_without_delay() -> None:
    async def no_delay() -> int:
        options: list[int] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            options.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        place = bind("127.0.0.1", 0)
        async with await asyncio.start_server(answer, sock=place.sockets[0]):
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            await reader.read()
            writer.close()
        return options[0]

    assert asyncio.run(no_delay())


def test_a_port_that_another_took_meanwhile_is_named() -> None:
    first = bind("127.0.0.1", 0)
    second = bind("127.0.0.1", first.port)  # neither listens, so both may have it
    first.listen()
    with pytest.raises(RankwellError, match=f"cannot listen at 127.0.0.1:{first.port}"):
        second.listen()
    first.close()
    second.close()


def test_a_host_that_is_none_is_named() -> None:
    with pytest.raises(RankwellError, match=r"cannot listen at nowhere\.invalid:8000"):
        bind("nowhere.invalid", 8000)


def test_a_port_in_use_is_found_before_anything_is_opened(tmp_path: Path) -> None:
    code = "from rankwell.cli.main import main; main()"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-c", code, "serve", str(tmp_path / "nowhere"), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"rankwell: cannot listen at 127.0.0.1:{port}: Address already in use"]
