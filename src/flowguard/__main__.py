"""`python -m flowguard` is the command `flowguard`."""

from flowguard.cli import app

if __name__ == "__main__":
    app(prog_name="flowguard")
