"""TLS settings and token files: what is refused before anything listens, and how it is named."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from tests.certificates import Authority, Identity, encrypt_key, stamped

from kernelflume.core.errors import ConfigurationError
from kernelflume.rpc.channel import Channels
from kernelflume.rpc.security import is_loopback
from kernelflume.runtime.settings import ServiceSettings, load
from kernelflume.runtime.tls import TlsSettings, read_token

if TYPE_CHECKING:
    from pathlib import Path


def parse(*argv: str) -> TlsSettings:
    return load(ServiceSettings, list(argv), program="sample").tls


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse(*argv)
    return str(caught.value)


def test_nothing_set_is_plaintext() -> None:
    assert parse() == TlsSettings()
    assert TlsSettings().open() is None
    assert TlsSettings().flags() == []


def test_flags_carry_the_settings_to_another_service(authority: Authority, node: Identity) -> None:
    settings = TlsSettings(
        certificate=node.certificate,
        key=node.key,
        ca=authority.ca,
        require_client_certificate=True,
        server_name="node",
    )
    assert parse(*settings.flags()) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes
    material = settings.read()
    assert material.key == node.key.read_bytes()
    assert "PRIVATE" not in repr(material)


def test_a_file_may_be_named_by_yaml_and_environment(
    tmp_path: Path, authority: Authority, node: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(f"tls:\n  certificate: {node.certificate}\n  key: {node.key}\n")
    monkeypatch.setenv("TLS__CA", str(authority.ca))
    settings = parse("--config", str(path))
    assert (settings.certificate, settings.key, settings.ca) == (node.certificate, node.key, authority.ca)


def test_renewed_files_are_read_once_they_belong_together(
    tmp_path: Path, authority: Authority, node: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = stamped(node.certificate, tmp_path / "node.pem")
    key = stamped(node.key, tmp_path / "node-key.pem")
    files = TlsSettings(certificate=certificate, key=key, ca=authority.ca).open()
    assert files is not None
    first = files.look()
    assert files.look() is first
    renewed = authority.issue("renewed")
    stamped(renewed.certificate, certificate)
    assert [files.look(), files.look()] == [first, first]  # the key is still the old one
    assert len(caplog.records) == 1
    assert "not used yet" in caplog.text
    assert "does not belong to the certificate" in caplog.text
    stamped(renewed.key, key)
    second = files.look()
    assert (second.certificate, second.key) == (renewed.certificate.read_bytes(), renewed.key.read_bytes())
    certificate.unlink()
    assert files.look() is second
    certificate.write_text("no certificate")
    assert files.look() is second
    stamped(node.certificate, certificate)
    stamped(node.key, key)
    assert files.look() == first


def test_half_of_a_pair_is_refused(authority: Authority, node: Identity) -> None:
    certificate, key = f"--tls.certificate={node.certificate}", f"--tls.key={node.key}"
    assert "tls.certificate needs tls.key as well" in refusal(certificate)
    assert "tls.key needs tls.certificate as well" in refusal(key)
    demand = "--tls.require-client-certificate"
    assert "tls.require-client-certificate needs" in refusal(certificate, key, demand)
    assert "tls.require-client-certificate needs" in refusal(f"--tls.ca={authority.ca}", demand)
    assert "tls.server-name needs" in refusal("--tls.server-name=node")


def test_a_file_that_cannot_be_read_is_named(folder: Path, node: Identity) -> None:
    absent = folder / "absent.pem"
    assert f"--tls.ca: cannot read {absent}: No such file" in refusal(f"--tls.ca={absent}")
    assert f"--tls.key: cannot read {absent}: No such file" in refusal(
        f"--tls.certificate={node.certificate}", f"--tls.key={absent}"
    )
    assert f"--tls.certificate: cannot read {folder}: Is a directory" in refusal(
        f"--tls.certificate={folder}"
    )


def test_files_that_do_not_fit_are_refused(folder: Path, authority: Authority, node: Identity) -> None:
    certificate = f"--tls.certificate={node.certificate}"
    other = authority.issue("other")
    assert f"{other.key} does not belong to the certificate" in refusal(certificate, f"--tls.key={other.key}")
    encrypted = encrypt_key(node.key, folder / "encrypted.pem")
    assert f"tls.key: {encrypted} is encrypted" in refusal(certificate, f"--tls.key={encrypted}")
    text = folder / "text.pem"
    text.write_text("no certificate")
    assert "are no certificate and key in PEM" in refusal(
        f"--tls.certificate={text}", f"--tls.key={node.key}"
    )
    assert f"--tls.ca: {text} holds no certificates" in refusal(f"--tls.ca={text}")


def test_a_token_is_read_without_the_space_around_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  s3cret-token\n")
    assert read_token("admin-token-file", path) == "s3cret-token"
    assert read_token("admin-token-file", None) is None
    assert "s3cret" not in repr(Channels(token="s3cret-token"))  # noqa: S106 - for this test


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must hold one token, and holds 0 words"),
        (b"hidden one\n", "must hold one token, and holds 2 words"),
        ("hidden-é".encode(), "no printable ASCII"),
    ],
)
def test_a_bad_token_file_is_refused_and_not_shown(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_token("admin-token-file", path)
    assert str(caught.value).startswith("admin-token-file: ")
    assert message in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--token-file: cannot read .*absent: No such file"):
        read_token("--token-file", tmp_path / "absent")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:0", True),
        ("127.1.2.3:80", True),
        ("localhost:80", True),
        ("[::1]:80", True),
        ("unix:/run/scaler.sock", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("10.0.0.1:80", False),
        ("node.example:80", False),
    ],
)
def test_loopback_is_known(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
