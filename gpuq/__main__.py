"""Entry of the `gpuq` command and of `python -m gpuq`. Imports the command line only when called."""

import gc


def main() -> None:
    """Run the command line and end the process with its exit code; Ctrl-C is 130, also while modules are loaded."""
    # Most commands live for a tenth of a second: looking for garbage in them costs more than the garbage.
    gc.set_threshold(200_000)
    try:
        from gpuq.cli.app import run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
