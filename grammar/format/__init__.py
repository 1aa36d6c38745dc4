"""The one layout of programs: tokens to lines, and trees to text."""
