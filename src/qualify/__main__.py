"""`python -m qualify`: the same as the `qualify` command."""

from qualify.cli import main

if __name__ == "__main__":
    main()
