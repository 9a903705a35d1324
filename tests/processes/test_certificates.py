"""The certificate of a service: replaced in place, open connections continue, expiry shown."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from parts.certs import Certificate, make_certificate
from tollgate.processes.certificates import Certificates, ExpiryWatch, expires_at
from tollgate.shm import metrics


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Certificate, Certificate]:
    made = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        made.append(make_certificate(tmp_path / name))
    return made[0], made[1]


def put(source: Certificate, target: Certificate, *names: str) -> None:
    for name in names or ("certificate", "key"):
        fresh = getattr(target, name).with_suffix(".fresh")
        shutil.copy(getattr(source, name), fresh)
        fresh.replace(getattr(target, name))


async def connected(port: int, trusting: Certificate) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", port, ssl=trusting.client_context(), server_hostname="localhost"
    )


async def test_a_changed_certificate_is_shown_to_new_connections_and_old_ones_go_on(
    tmp_path: Path, pair: tuple[Certificate, Certificate]
) -> None:
    old, new = pair
    (tmp_path / "live").mkdir()
    live = Certificate(old.authority, tmp_path / "live" / "cert.pem", tmp_path / "live" / "key.pem")
    put(old, live)
    loaded = Certificates(str(live.certificate), str(live.key))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=loaded.context)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await connected(port, old)
    assert loaded.tick() is False

    put(new, live, "certificate")  # half of it: refused, and the old one stays
    assert loaded.tick() is False
    _, second = await connected(port, old)
    second.close()

    put(new, live, "key")
    assert loaded.tick() is True
    _, third = await connected(port, new)
    third.close()
    with pytest.raises(ssl.SSLCertVerificationError):
        await connected(port, old)

    writer.write(b"still here")
    assert await asyncio.wait_for(reader.read(100), 30) == b"still here"
    writer.close()
    server.close()


def encrypted(key: bytes) -> bytes:
    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )


@pytest.mark.parametrize("name", ["certificate", "key"])
@pytest.mark.parametrize("how", ["garbage", "empty", "removed", "foreign", "encrypted"])
def test_files_that_cannot_be_used_leave_the_certificate_before_in_force(
    tmp_path: Path, pair: tuple[Certificate, Certificate], name: str, how: str
) -> None:
    old, new = pair
    loaded = Certificates(str(old.certificate), str(old.key))
    before = loaded._newest
    file: Path = getattr(old, name)
    good = file.read_bytes()
    if how == "removed":
        file.unlink()
    else:
        foreign = getattr(new, name).read_bytes()
        file.write_bytes(
            {
                "garbage": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "empty": b"",
                "foreign": foreign,
                "encrypted": encrypted(old.key.read_bytes()),
            }[how]
        )
    assert loaded.tick() is False
    assert loaded._newest is before
    file.write_bytes(good)
    loaded.tick()
    assert ssl.SSLContext is type(loaded._newest)


def test_expiry_is_a_metric_and_is_shown_anew(pair: tuple[Certificate, Certificate]) -> None:
    old, new = pair
    writer = metrics.Regions(1).writer(0)
    now = [expires_at(old.certificate) - 1_000_000.0]
    watch = ExpiryWatch(str(old.certificate), str(old.key), writer, lambda: now[0])

    def shown() -> int:
        return writer.cells[writer.cell(metrics.CERTIFICATE_EXPIRY)]

    assert shown() == int(expires_at(old.certificate))
    put(new, old)
    now[0] += 10
    watch.tick()
    assert shown() == int(expires_at(new.certificate))
