"""`python -m routing`: the same as the `routing` command."""

from routing.cli import command

if __name__ == "__main__":
    command()
