"""Certificates for one launch: an authority of its own, and mutual TLS between its nodes."""

from __future__ import annotations

import dataclasses
import datetime
import os
import ssl
import tempfile


@dataclasses.dataclass(frozen=True)
class Credentials:
    """What a node of a launch shows, and whom it trusts.

    All are PEM text: the authority, a certificate signed by it, and the certificate's key.
    """

    authority: bytes
    certificate: bytes
    key: bytes

    def server_context(self) -> ssl.SSLContext:
        """Returns a TLS context that asks clients for a certificate of this launch."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client_context(self) -> ssl.SSLContext:
        """Returns a TLS context that accepts only servers of this launch."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Nodes are known by the launch's authority, which signs nobody else; where they run doesn't matter.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority.decode())
        with tempfile.TemporaryDirectory(prefix="rlpad-tls-") as folder:
            path = os.path.join(folder, "node.pem")  # the ssl module loads keys from files only
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(self.key + self.certificate)
            context.load_cert_chain(path)
        return context


def make_credentials(valid_days: int = 365) -> Credentials:
    """Makes a new authority and a certificate signed by it; the authority's key is thrown away.

    Raises:
      ImportError: the extra `tls` isn't installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ImportError("TCP between nodes needs the extra: pip install 'rlpad[tls]'") from error

    def build(subject: str, issuer: str, public: ec.EllipticCurvePublicKey, *, authority: bool) -> object:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (subject, issuer)]
        return (
            x509.CertificateBuilder()
            .subject_name(names[0])
            .issuer_name(names[1])
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=valid_days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = f"rlpad launch {os.urandom(8).hex()}"
    signed = [
        build(subject, name, k.public_key(), authority=ca).sign(authority_key, hashes.SHA256())  # type: ignore[attr-defined]
        for subject, k, ca in ((name, authority_key, True), ("rlpad node", key, False))
    ]
    pem = serialization.Encoding.PEM
    return Credentials(
        authority=signed[0].public_bytes(pem),
        certificate=signed[1].public_bytes(pem),
        key=key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
