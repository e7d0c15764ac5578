"""The commands of dpledger."""

from typing import Final

EXIT_INTERRUPTED: Final = 130  # as of a command that Ctrl-C ended


def start() -> None:
    """Run the command line; Ctrl-C ends it without a traceback also while it is loaded."""
    try:
        from service.cli.main import main
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    main()
