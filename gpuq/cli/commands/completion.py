"""gpuq completion: the completion script for a shell."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.options import Argument, Command, Values


def completion(values: Values) -> int:
    """Print the script."""
    from gpuq.cli.completion import completion_script

    output.write(completion_script(values.text("shell") or ""))
    return 0


COMMAND = Command(
    "Print the completion script for a shell.",
    completion,
    (),
    Argument("shell", "SHELL", "bash, zsh or fish.", completes="bash zsh fish"),
    epilog="bash: source <(gpuq completion bash);  zsh: gpuq completion zsh > a directory of $fpath/_gpuq;  "
    "fish: gpuq completion fish > ~/.config/fish/completions/gpuq.fish",
)
