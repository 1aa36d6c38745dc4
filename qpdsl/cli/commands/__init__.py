"""The commands, one file each, named as the command is; `cli.app` lists them.

Each file defines `command`, a click command. It is imported when it is called, and imports what is slow to load only
when it runs: help and completion must stay quick.
"""
