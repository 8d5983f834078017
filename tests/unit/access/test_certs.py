"""Certificates: what they say, that they are kept while they serve, and renewed when they do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from halimede.access import certificate_authority, certs
from halimede.access.certs import finish_authority, make_certificates, rotate_authority, states
from halimede.access.site import Site
from halimede.errors import HalimedeError, InvalidFieldError
from tests.programs import run_program
from tests.unit.access.test_passwords import content

SITE = Site(broker=["broker.example.com", "10.0.0.7", "::1"], nodes=["edge0", "cloud0"], cameras=["cam0"])
FOLDERS = ["broker", "gm", "nodes/edge0/lc", "nodes/cloud0/cloud-worker", "cameras/cam0", "operators/admin"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the folder with certificates of SITE."""
    make_certificates(SITE, tmp_path)
    return tmp_path


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def extension(found: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.Extension[x509.ExtensionType]:
    return found.extensions.get_extension_for_class(kind)


def test_the_authority_may_sign_parts_and_no_other_authorities(home: Path) -> None:
    found = certificate(home / "ca.crt")
    basic, usage = extension(found, x509.BasicConstraints), extension(found, x509.KeyUsage)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)  # type: ignore[attr-defined]
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)  # type: ignore[attr-defined]
    assert found.not_valid_after_utc - datetime.now(UTC) > timedelta(days=3649)
    assert isinstance(found.public_key().curve, ec.SECP256R1)


def test_a_client_is_its_user_and_a_client_only(tmp_path: Path) -> None:
    make_certificates(SITE, tmp_path, days=90)
    for user in SITE.principals():
        found = certificate(tmp_path / user.folder / "tls.crt")
        assert [a.value for a in found.subject] == [user.username]
        assert list(extension(found, x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]  # type: ignore[call-overload]
        assert extension(found, x509.BasicConstraints).value.ca is False  # type: ignore[attr-defined]
        assert timedelta(days=89) < found.not_valid_after_utc - datetime.now(UTC) < timedelta(days=90)
        assert found.signature_hash_algorithm.name == "sha256"


def test_the_broker_has_its_names_and_addresses(home: Path) -> None:
    found = certificate(home / "broker" / "tls.crt")
    names = extension(found, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.example.com"]  # type: ignore[attr-defined]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "::1"]  # type: ignore[attr-defined]
    assert list(extension(found, x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]  # type: ignore[call-overload]


@pytest.mark.parametrize("folder", FOLDERS)
def test_openssl_agrees(home: Path, folder: str) -> None:
    purpose = "sslserver" if folder == "broker" else "sslclient"
    line = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", f"{home}/{folder}/ca.crt"]
    done = run_program(*line, f"{home}/{folder}/tls.crt")
    assert done.returncode == 0, done.stderr


def test_keys_and_rules_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    make_certificates(SITE, folder)
    for path in [folder, *folder.rglob("*")]:
        secret = path.suffix == ".key" or path.name in {"acl", ".lock"}
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600 if secret else 0o644), path


def test_a_second_run_changes_nothing_and_a_new_node_only_itself(home: Path) -> None:
    before = content(home)
    assert not make_certificates(SITE, home).changed
    assert content(home) == before
    more = Site(broker=SITE.broker, nodes=[*SITE.nodes, "edge7"], cameras=SITE.cameras)
    assert make_certificates(more, home).created == ("lc.edge7", "edge-worker.edge7", "cloud-worker.edge7")
    after = content(home)
    assert {name for name in before if before[name] != after[name]} == {"broker/acl"}
    assert make_certificates(SITE, home).removed == ("lc.edge7", "edge-worker.edge7", "cloud-worker.edge7")
    assert not (home / "nodes" / "edge7").exists()


@pytest.mark.parametrize(
    "damage", ["no key", "no certificate", "another's key", "nonsense", "another's certificate", "another authority's"]
)
def test_what_does_not_serve_is_made_anew(home: Path, damage: str) -> None:
    own, other = home / "nodes" / "edge0" / "lc", home / "gm"
    if damage == "no key":
        (own / "tls.key").unlink()
    elif damage == "no certificate":
        (own / "tls.crt").unlink()
    elif damage == "another's key":
        (own / "tls.key").write_bytes((other / "tls.key").read_bytes())
    elif damage == "nonsense":
        (own / "tls.crt").write_text("nonsense")
    else:
        if damage == "another authority's":
            elsewhere = home.with_name(f"{home.name}-elsewhere")
            make_certificates(SITE, elsewhere)
            other = elsewhere / "nodes" / "edge0" / "lc"
        for name in ("tls.key", "tls.crt"):
            (own / name).write_bytes((other / name).read_bytes())
    assert make_certificates(SITE, home).created == ("lc.edge0",)
    assert not [found for found in states(SITE, home) if found.problem]


def test_other_names_of_the_broker_give_it_a_new_certificate(home: Path) -> None:
    more = Site(broker=[*SITE.broker, "other.example.com"], nodes=SITE.nodes, cameras=SITE.cameras)
    assert make_certificates(more, home).created == ("broker",)


def test_what_is_about_to_expire_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificates(SITE, tmp_path, days=90)
    real = datetime.now(UTC)

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return real + days

    for module in (certificate_authority, certs):
        monkeypatch.setattr(module, "datetime", Later)
    days = timedelta(days=58)
    assert not make_certificates(SITE, tmp_path, days=90).changed
    everybody = 1 + len(list(SITE.principals()))
    days = timedelta(days=61)
    assert {found.problem for found in states(SITE, tmp_path)} == {""}
    assert len(make_certificates(SITE, tmp_path, days=90).created) == everybody
    days = timedelta(days=500)
    assert {found.problem for found in states(SITE, tmp_path)} == {"", "expired"}
    assert len(make_certificates(SITE, tmp_path, days=90).created) == everybody
    days = timedelta(days=certificate_authority.CA_DAYS + 1)
    assert {found.problem for found in states(SITE, tmp_path)} == {"expired"}


def test_rotation_is_for_all_or_for_some(home: Path) -> None:
    gm = (home / "gm" / "tls.crt").read_bytes()
    assert make_certificates(SITE, home, rotate=True, only=["lc.edge0", "broker"]).created == ("broker", "lc.edge0")
    assert (home / "gm" / "tls.crt").read_bytes() == gm
    report = make_certificates(SITE, home, rotate=True)
    assert report.unchanged == ("ca",)
    assert len(report.created) == 1 + len(list(SITE.principals()))
    with pytest.raises(InvalidFieldError, match="it is not in this site"):
        make_certificates(SITE, home, rotate=True, only=["lc.edge9"])


def test_a_new_authority_comes_in_three_steps(home: Path) -> None:
    leaf = (home / "gm" / "tls.crt").read_bytes()
    rotate_authority(SITE, home)
    bundles = {(home / folder / "ca.crt").read_bytes() for folder in ["", *FOLDERS]}
    assert [len(x509.load_pem_x509_certificates(bundle)) for bundle in bundles] == [2]
    assert (home / "gm" / "tls.crt").read_bytes() == leaf
    with pytest.raises(HalimedeError, match="broker has no certificate of the new authority"):
        finish_authority(SITE, home)
    make_certificates(SITE, home, rotate=True)
    finish_authority(SITE, home)
    assert (home / "gm" / "ca.crt").read_bytes().count(b"BEGIN") == 1
    assert not [found for found in states(SITE, home) if found.problem]
    assert not make_certificates(SITE, home).changed


def test_without_the_authoritys_key_what_is_there_serves_but_nothing_is_signed(home: Path) -> None:
    (home / "ca.key").unlink()
    assert not make_certificates(SITE, home).changed
    with pytest.raises(HalimedeError, match=r"ca\.key is not there, so no certificate can be signed: restore it"):
        make_certificates(SITE, home, rotate=True)
    rotate_authority(SITE, home)
    assert len(make_certificates(SITE, home, rotate=True).created) == 1 + len(list(SITE.principals()))


@pytest.mark.parametrize(
    ("site", "days", "part"),
    [
        (Site(nodes=["n" * 52]), 365, "a cloud worker's name in a certificate has at most 51 letters"),
        (Site(nodes=["edge0"]), 0, "days: 0 is not accepted: use 1 to 3650"),
    ],
)
def test_what_cannot_stand_in_a_certificate_is_refused_before_anything_is_written(
    tmp_path: Path, site: Site, days: int, part: str
) -> None:
    with pytest.raises(InvalidFieldError, match=part):
        make_certificates(site, tmp_path / "site", days=days)
    assert not (tmp_path / "site").exists()


def test_common_names_are_what_the_broker_reads_as_user_names(tmp_path: Path) -> None:
    make_certificates(Site(nodes=["n" * 51]), tmp_path)
    found = certificate(tmp_path / "nodes" / ("n" * 51) / "cloud-worker" / "tls.crt")
    assert found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == f"cloud-worker.{'n' * 51}"
