"""Prints the README's shell blocks, one after another, as a script: CI runs what users are told to run.

The script says how long each block took.
"""

import pathlib
import re

readme = pathlib.Path(__file__).parent.parent / "README.md"
for block in re.findall(r"^```bash\n(.*?)^```", readme.read_text(), re.DOTALL | re.MULTILINE):
    print(f'start=$SECONDS\n{block}echo "--- $((SECONDS - start)) s"\n')
