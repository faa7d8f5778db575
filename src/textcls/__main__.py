"""python -m textcls"""

from textcls.cli import app

app(prog_name="textcls")
