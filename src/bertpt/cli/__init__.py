"""The command line: parse, call a plain function, print. One module per group of commands."""
