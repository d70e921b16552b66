"""A model's README as Markdown that a page may show: no HTML, and nothing to fetch."""

import re

FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # settings of a hub of models
# the page serves no file of a folder
PICTURE = re.compile(r"!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])\n*")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def shown_readme(text: str) -> str:
    """A README without pictures, whose HTML is shown as it is written.

    >>> shown_readme("# Digits\\n![a](b.png)<b>bold</b> `a < b`")
    '# Digits\\n&lt;b>bold&lt;/b> `a < b`'
    """
    text = FRONT_MATTER.sub("", text.replace("\r\n", "\n"))
    parts = CODE.split(text)
    parts[::2] = [PICTURE.sub("", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)
