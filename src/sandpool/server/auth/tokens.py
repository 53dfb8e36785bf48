"""Static bearer tokens: the administrator's, and those of a token file."""

from __future__ import annotations

import csv
import secrets
from pathlib import Path

from sandpool.server.auth.groups import MASTERS, authenticated
from sandpool.server.auth.private_files import write_private
from sandpool.server.request.messages import User

ADMIN = User("sandpool-admin", (MASTERS,))


class StaticTokens:
    """Users by token. A dict compares keyed hashes first, so timing reveals nothing about a guess."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._headers: dict[str, User] = {}
        self.find_by_header = self._headers.get  # by the whole header: one lookup on the hot path

    def add(self, token: str, user: User) -> None:
        self._users[token] = self._headers[f"Bearer {token}"] = authenticated(user)

    def find(self, token: str) -> User | None:
        return self._users.get(token)

    def load(self, path: Path) -> None:
        """Add the tokens of a file in Kubernetes' format: ``token,user,uid,"group1,group2"`` per line.

        Raises ``ValueError`` with the number of an invalid line, ``OSError`` if the file cannot be read.
        """
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file, skipinitialspace=True)
            for row in reader:
                if not row or row[0].startswith("#"):
                    continue
                if len(row) < 3 or not row[0] or not row[1]:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: a token line has a token, a user name, a user uid "
                        "and perhaps groups, separated by commas"
                    )
                groups = tuple(group.strip() for group in row[3].split(",")) if len(row) > 3 and row[3] else ()
                self.add(row[0], User(row[1], groups, uid=row[2]))


def admin_token(path: Path) -> str:
    """Load the administrator's token, or create it on first use."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        token = ""
    if not token:
        token = secrets.token_urlsafe(32)
        write_private(path, f"{token}\n".encode())
    return token
