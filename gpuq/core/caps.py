"""How many GPUs the jobs of one account or user may hold at once. Imports states; the shell reads them of gpuq.toml.

A user is under the cap of the first account that names the user, if it has one, and under the cap of users, if there is
one. GPUs count from the placement of a job to the proof that it has ended, and while they are kept for it.

One thing to know: a cap keeps jobs from starting, and stops none. After a cap was lowered, jobs may hold more than it
says until they end.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuq.core.states import Reason


class Cap(NamedTuple):
    """GPUs that some users' jobs may hold at once, all together."""

    name: str  # for people: "account vision", "user anna"
    users: tuple[str, ...]
    max_gpus: int
    key: str  # the setting that says so
    reason: Reason


class AccountCap(NamedTuple):
    """An account of gpuq.toml; max_gpus 0: no cap."""

    name: str
    users: tuple[str, ...]
    max_gpus: int = 0


class Caps(NamedTuple):
    """All caps of a site; the default has none."""

    accounts: tuple[AccountCap, ...] = ()
    max_gpus_per_user: int = 0  # 0: no cap

    @property
    def any(self) -> bool:
        """Whether there is any cap at all."""
        return self.max_gpus_per_user > 0 or any(each.max_gpus for each in self.accounts)

    def of(self, user: str) -> tuple[Cap, ...]:
        """The caps that hold for a user's jobs."""
        found = []
        account = self._account_of(user)
        if account is not None and account.max_gpus:
            users = tuple(each for each in account.users if self._account_of(each) is account)
            key = f"[accounts.{account.name}] max_gpus"
            found.append(Cap(f"account {account.name}", users, account.max_gpus, key, Reason.ACCOUNT_GPU_LIMIT))
        if self.max_gpus_per_user:
            key = "[planner] max_gpus_per_user"
            found.append(Cap(f"user {user}", (user,), self.max_gpus_per_user, key, Reason.USER_GPU_LIMIT))
        return tuple(found)

    def _account_of(self, user: str) -> AccountCap | None:
        return next((each for each in self.accounts if user in each.users), None)
