"""The serving certificate behind the aggregation layer: issued by an own CA, and renewed while the server runs.

The CA is replaced, too, before it expires, without a moment at which a client does not trust the server: a new CA is
published beside the old one, serves when all APIServices have both, and only a check later the old one goes. Each has a
directory, and one file says which are trusted and which one serves; it is replaced atomically.
"""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import orjson

from sandpool.engine.clock import Clock
from sandpool.server.auth.private_files import write_private
from sandpool.server.serving.pki import Authority, server_tls

#: Seconds between two looks at the expiry. A certificate is renewed 30 days before it.
CHECK_SECONDS: Final = 12 * 3600.0
#: Before its expiry by this, the CA is replaced: longer than the certificates last that it issues.
_REPLACE_BEFORE: Final = timedelta(days=400)
_STATE: Final = "authorities.json"
_FIRST: Final = ""  # the directory itself


@dataclass(frozen=True, slots=True)
class _State:
    """Directories of CAs, oldest first, and the one whose certificate is used."""

    trusted: tuple[str, ...] = (_FIRST,)
    serving: str = _FIRST


class ServingCertificate:
    """The certificate for these names, in a directory with its CAs."""

    def __init__(self, directory: Path, names: Sequence[str], clock: Clock) -> None:
        self._directory = directory
        self._names = tuple(names)
        self._clock = clock
        self._state = self._load()
        self._authorities = {name: Authority(directory / name, clock) for name in self._state.trusted}
        self._used = self._read()

    @property
    def ca(self) -> str:
        """The CAs that clients must trust, as PEM."""
        return "".join(self._authorities[name].ca_pem for name in self._state.trusted)

    def tls(self, client_ca: str) -> ssl.SSLContext:
        """TLS with the present certificate, for clients with certificates of ``client_ca``."""
        return server_tls(self._serving.server(self._names), client_ca)

    def renewed(self) -> bool:
        """Issue the certificate again if it is about to expire. True if it differs from the one of the last call."""
        before, self._used = self._used, self._read()
        return self._used != before

    def replace_ca(self, *, published: bool) -> None:
        """Take the next step in the replacement of the CA, if there is one; call it once in ``CHECK_SECONDS``.

        ``published``: whether all clients trust what ``ca`` is now."""
        state = self._state
        if len(state.trusted) == 1:
            if self._serving.ca_expires - self._clock.now() > _REPLACE_BEFORE:
                return
            name = f"ca-{int(state.serving.rpartition('-')[2] or 1) + 1}"
            self._authorities[name] = Authority(self._directory / name, self._clock)
            self._save(_State((*state.trusted, name), state.serving))
        elif state.serving != state.trusted[-1]:
            if published:
                self._save(_State(state.trusted, state.trusted[-1]))
        else:
            self._save(_State((state.serving,), state.serving))
            for name in state.trusted[:-1]:
                del self._authorities[name]
                if name != _FIRST:
                    shutil.rmtree(self._directory / name, ignore_errors=True)

    @property
    def _serving(self) -> Authority:
        return self._authorities[self._state.serving]

    def _read(self) -> bytes:
        return self._serving.server(self._names).certificate.read_bytes()

    def _load(self) -> _State:
        file = self._directory / _STATE
        try:
            found = orjson.loads(file.read_bytes())
            return _State(tuple(map(str, found["trusted"])), str(found["serving"]))
        except FileNotFoundError:
            return _State()
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            raise ValueError(
                f"{file} is damaged: restore it from a backup, or remove {self._directory} to issue all certificates "
                "again"
            ) from error

    def _save(self, state: _State) -> None:
        write_private(
            self._directory / _STATE, orjson.dumps({"trusted": list(state.trusted), "serving": state.serving})
        )
        self._state = state
