"""`python -m tollgate`: the same as the command `tollgate`."""

from tollgate.cli.main import main

if __name__ == "__main__":
    main()
