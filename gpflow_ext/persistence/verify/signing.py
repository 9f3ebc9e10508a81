"""Signatures by Ed25519, through the library ``cryptography``, which is imported where a key is used."""

from __future__ import annotations

from typing import Any

_CONTEXT = b"gpflow_ext manifest\n"  # what is signed here is signed as nothing else


def sign(content: bytes, key: bytes) -> str:
    """Return the signature of ``content`` in hexadecimal digits, by a private key: PEM or 32 bytes."""
    ed25519 = _library()
    private = _read(key, "sign", ed25519.Ed25519PrivateKey, "load_pem_private_key", password=None)
    return bytes(private.sign(_CONTEXT + content)).hex()


def is_signed(content: bytes, signature: bytes, key: bytes) -> bool:
    """Tell whether a signature of ``content`` is by the private half of a public key: PEM or 32 bytes."""
    from cryptography.exceptions import InvalidSignature

    try:
        public_key(key).verify(signature, _CONTEXT + content)
    except InvalidSignature:
        return False
    return True


def public_key(key: bytes) -> Any:
    """Return the public key that PEM or 32 bytes hold, or raise ``ValueError``."""
    return _read(key, "key", _library().Ed25519PublicKey, "load_pem_public_key")


def _read(key: bytes, argument: str, kind: Any, reader: str, **options: Any) -> Any:
    from cryptography.hazmat.primitives import serialization

    name = kind.__name__.removeprefix("Ed25519")
    if not isinstance(key, bytes):
        raise ValueError(
            f"{argument} must be bytes, as Path(file).read_bytes() gives them; got {type(key).__name__}"
        )
    if len(key) == 32:
        return getattr(kind, f"from_{name.removesuffix('Key').lower()}_bytes")(key)
    try:
        found = getattr(serialization, reader)(key, **options)
    except (TypeError, ValueError) as error:  # TypeError: it is encrypted
        raise ValueError(
            f"{argument} must hold an Ed25519 {name}, unencrypted PEM or 32 bytes: {error}"
        ) from error
    if not isinstance(found, kind):
        raise ValueError(f"{argument} must be an Ed25519 key; got a {type(found).__name__}")
    return found


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ImportError(f'signatures need pip install "gpflow-ext[sign]" ({error})') from error
    return ed25519
