r"""Equations become MathML when the site is built: a browser draws them by itself, with no script and no network.

The pages write them as `$...$` and `$$...$$`, which code hosts draw, too.
"""

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    content = INLINE.sub(lambda found: _mathml(found, "inline"), content)
    return BLOCK.sub(lambda found: f'<div class="equation">{_mathml(found, "block")}</div>', content)


def _mathml(found: re.Match[str], display: str) -> str:
    latex = html.unescape(found.group(1)).strip()
    # The converter knows `align*` only; code hosts take `aligned` as well.
    mathml = convert(latex.replace("{aligned}", "{align*}"), display=display)
    if "<mi>&</mi>" in mathml or "<mi>\\" in mathml:  # it lets pass what it does not know
        raise PluginError(f"latex2mathml does not know a part of this equation: {latex}")
    return mathml
