"""The gallery: every script of docs/examples is executed when the site is built, and becomes a page with its picture.

A script that fails ends the build. What it made is kept in build/examples, and made again when the script or the
package changes.
"""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
NAMES = ("steady", "rollout", "bring_your_data", "own_network")  # in the order of the gallery
PARTS = ("geomano_hpc", "kernels", "launch", "data_prep")
SOURCES = {".py", ".cpp", ".h", ".yaml"}
SECONDS = 900  # far more than a script takes, on a machine with other work too


@dataclass(frozen=True)
class Example:
    name: str
    title: str
    about: str
    code: str
    picture: Path
    printed: str


def on_files(files: Files, config: MkDocsConfig) -> Files:
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        examples = list(pool.map(_example, NAMES))
    for example in examples:
        files.append(File.generated(config, f"gallery/{example.name}.md", content=_page(example)))
        picture = f"gallery/{example.name}.png"
        files.append(File.generated(config, picture, abs_src_path=str(example.picture)))
    files.append(File.generated(config, "gallery/index.md", content=_overview(examples)))
    return files


def _example(name: str) -> Example:
    script = ROOT / "docs" / "examples" / f"{name}.py"
    text = script.read_text()
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring is not None, f"{script} has no docstring"
    title, _, about = docstring.partition("\n\n")
    made = _executed(script)
    code = text.split('"""', 2)[2].strip()
    return Example(name, title, about, code, made / f"{name}.png", (made / "printed.txt").read_text())


def _executed(script: Path) -> Path:
    """The folder with what the script made, which appears whole or not at all."""
    finished = ROOT / "build" / "examples" / f"{script.stem}-{_key(script)}"
    if finished.is_dir():
        return finished
    finished.parent.mkdir(parents=True, exist_ok=True)
    for outdated in finished.parent.glob(f"{script.stem}-*"):
        shutil.rmtree(outdated)
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script)]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if done.returncode:
            raise PluginError(f"{script.relative_to(ROOT)} failed:\n{done.stdout}{done.stderr}")
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=finished.parent))
        shutil.copy(Path(place) / f"{script.stem}.png", unfinished)
        (unfinished / "printed.txt").write_text(done.stdout)
    unfinished.rename(finished)
    return finished


def _key(script: Path) -> str:
    package = sorted(path for part in PARTS for path in (ROOT / part).rglob("*") if path.suffix in SOURCES)
    digest = hashlib.sha256()
    for path in (script, *package):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _page(example: Example) -> str:
    return f"""# {example.title}

{example.about}

![{example.title}]({example.name}.png)

It prints:

```text
{example.printed.strip()}
```

The whole script, `docs/examples/{example.name}.py`:

```python
{example.code}
```
"""


def _overview(examples: list[Example]) -> str:
    entries = "\n".join(
        f"## [{example.title}]({example.name}.md)\n\n{example.about}\n\n"
        f"[![{example.title}]({example.name}.png)]({example.name}.md)\n"
        for example in examples
    )
    return f"""# Gallery

Four short scripts with the public [Python API](../api.md). They are executed when this site is built, each in well
under a minute on one core. So what you see is what they do.

{entries}"""
