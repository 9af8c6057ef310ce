"""Entry of the `gpuq` command and of `python -m gpuq`. Imports the command line only when called."""


def main() -> None:
    """Run the command line; ends the process with the exit codes of `gpuq help exit-codes`."""
    from gpuq.cli.app import run

    run()


if __name__ == "__main__":
    main()
