"""`python -m routing`: the same as the `routing` command."""

from routing.cli import main

if __name__ == "__main__":
    main()
