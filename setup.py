"""The packages to install: `qpdsl/`, and the folders beside it that are its subpackages."""

from setuptools import find_packages, setup

MAPPED = ("grammar", "planner", "executor", "tui", "programs")
# A folder of programs has data files and no `__init__.py`.
found = [*find_packages(include=["qpdsl", "qpdsl.*"]), "qpdsl.programs"]
found += [f"qpdsl.{name}" for top in MAPPED for name in find_packages(include=[top, f"{top}.*"])]

setup(packages=found, package_dir={f"qpdsl.{top}": top for top in MAPPED})
