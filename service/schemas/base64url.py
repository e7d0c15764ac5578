"""Encode bytes as base64 for URLs, without padding."""

import base64
import binascii


def to_text(data: bytes) -> str:
    """Bytes as unpadded base64url."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def to_bytes(text: str) -> bytes:
    """Bytes from the one text that `to_text` makes of them.

    Raises:
        ValueError: it is another text.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("Not base64url.") from None
    if to_text(data) != text:  # padded, or with stray bits at the end: another text, same bytes
        raise ValueError("Not base64url without padding.")
    return data
