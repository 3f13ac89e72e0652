"""Makes ``python -m lightning_modules`` the command line."""

from lightning_modules.cli import main

if __name__ == "__main__":
    main()
