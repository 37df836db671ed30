"""``python -m bertpt``."""

from bertpt.cli.main import main

if __name__ == "__main__":
    main()
