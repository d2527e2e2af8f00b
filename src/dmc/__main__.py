"""Run the command line: `python -m dmc` is the same as `dmc`."""

import signal


def main() -> None:
    """Load the command line, which takes a moment, and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until it is loaded, Ctrl-C ends without a traceback
    from dmc.cli import main as run

    run()


if __name__ == "__main__":
    main()
