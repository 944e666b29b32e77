"""The key by which the operator reads and sets one service's replicas. Pods get only its digest."""

import hashlib
import hmac


def service_key(root_key: bytes, uid: str) -> str:
    """Return the key of the service with this uid: nobody else's opens its replicas, and no Secret has to hold it."""
    return hmac.new(root_key, uid.encode(), hashlib.sha256).hexdigest()
