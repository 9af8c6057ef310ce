"""The error tree. Owns what a failure is called, its exit code and its hint. Imports nothing of gpuq.

    GpuqError
    ├── UserError             what was asked cannot be done; the text says what to type instead     exit 1
    │   ├── UsageError        the command line or a directive is wrong                              exit 2
    │   ├── Refused           a request the state does not allow                                    exit 1
    │   ├── NotFound          no such job, node or GPU                                              exit 1
    │   ├── Forbidden         not the owner and not an administrator                                exit 1
    │   └── ConfigError       gpuq.toml: names file and key                                         exit 1
    ├── DaemonUnreachable     nobody answers at the socket                                          exit 3
    ├── NodeError             an agent or a link failed                                             exit 1
    └── InternalError         a fault of gpuq itself; the log has the traceback                     exit 1
        ├── JournalError      the state file cannot be read or written
        ├── IllegalTransition an event that the state table does not know
        └── InvariantBroken   the state contradicts itself

One thing to know: an error is one sentence (what and where) plus a hint (what to do next); both travel over
the socket as they are, so the person reads what the daemon meant.
"""

from __future__ import annotations

from typing import Any, ClassVar


class GpuqError(Exception):
    """Base of all errors a person may see; `kind` is its stable name in JSON."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def as_json(self) -> dict[str, Any]:
        """The `error` object of a JSON answer: kind, message, hint (may be null), exit_code."""
        return {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UserError(GpuqError):
    """What was asked cannot be done."""

    kind = "user"
    http_status = 400


class UsageError(UserError):
    """The command line, a directive or a value in it is wrong."""

    kind = "usage"
    exit_code = 2


class Refused(UserError):
    """The request is well formed, but the state does not allow it."""

    kind = "refused"
    http_status = 409


class NotFound(UserError):
    """No such job, node or GPU."""

    kind = "not_found"
    http_status = 404


class Forbidden(UserError):
    """The caller is neither the owner nor an administrator."""

    kind = "forbidden"
    http_status = 403


class ConfigError(UserError):
    """gpuq.toml is wrong; the message names the file and the key."""

    kind = "config"


class DaemonUnreachable(GpuqError):
    """Nobody answers at the daemon's socket."""

    kind = "unreachable"
    exit_code = 3
    http_status = 503


class NodeError(GpuqError):
    """An agent or the link to it failed."""

    kind = "node"
    http_status = 502


class InternalError(GpuqError):
    """A fault of gpuq itself."""

    kind = "internal"


class JournalError(InternalError):
    """The state file cannot be read or written."""

    kind = "journal"
    http_status = 503


class IllegalTransition(InternalError):
    """An event that the table in core.states does not allow in the job's state."""

    kind = "illegal_transition"


class InvariantBroken(InternalError):
    """The state contradicts itself; raised by check_invariants."""

    kind = "invariant"


def _tree(base: type[GpuqError]) -> dict[str, type[GpuqError]]:
    kinds = {base.kind: base}
    for child in base.__subclasses__():
        kinds.update(_tree(child))
    return kinds


def from_json(document: dict[str, Any]) -> GpuqError:
    """The error that `as_json` described, so that a client raises what the daemon raised."""
    error = _tree(GpuqError).get(str(document.get("kind")), GpuqError)
    return error(str(document.get("message", "unknown error")), document.get("hint"))
