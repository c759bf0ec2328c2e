#!/usr/bin/env python3
"""Checks that code and prose name their actors: a thread, a process, a caller, a pool.

    tests/words.py [FOLDER ...]      default: the whole repository

Reads the tracked Rust, C, shell, TOML and Markdown files. Prints `file:line: word: text` for each
personal or indefinite pronoun, also inside identifiers, which are split at `_` and at case changes.
The interrogative pronoun is an error in identifiers and in comments of code; text for people may
use it. The exit code is 1 if a word was found.
"""

import re
import subprocess
import sys

# Composed, so that a search of the repository for these words does not find this file.
ANYWHERE = {stem + "body" for stem in ("no", "some", "any", "every")}
ANYWHERE |= {"some" + "one", "h" + "e", "h" + "is", "h" + "im"}
INTERROGATIVE = "wh" + "o"
ANYWHERE |= {INTERROGATIVE + "ever", INTERROGATIVE + "m"}

NAMES = ["*.rs", "*.md", "*.toml", "*.c", "*.h", "*.sh"]

# The parts of a word of letters: of `NotFound`, `NOT_FOUND` and `not_found` the same two.
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Comments and literals of Rust and C, in the order in which they must be tried.
C_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<literal>\bb?c?r(?P<hashes>\#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\\n])')""",
    re.DOTALL | re.VERBOSE,
)
# Comments and literals of shell scripts and TOML.
HASH_TOKEN = re.compile(
    r"""(?P<comment>(?:^|(?<=\s))\#[^\n]*)
    |(?P<literal>\"\"\".*?\"\"\"|"(?:\\.|[^"\\\n])*"|'[^'\n]*')""",
    re.DOTALL | re.VERBOSE | re.MULTILINE,
)


def parts(word):
    return [part.lower() for part in PART.findall(word)]


def regions(name, text):
    """Yields (kind, start, text) of `comment`, `literal`, `code` and `prose`."""
    if name.endswith(".md"):
        yield "prose", 0, text
        return
    token = C_TOKEN if name.endswith((".rs", ".c", ".h")) else HASH_TOKEN
    end = 0
    for match in token.finditer(text):
        yield "code", end, text[end : match.start()]
        yield match.lastgroup if match.lastgroup == "comment" else "literal", match.start(), match.group()
        end = match.end()
    yield "code", end, text[end:]


def is_error(kind, word, identifier, before):
    if word in ANYWHERE:
        return True
    if word != INTERROGATIVE:
        return False
    # Prose and literals: only as a part of an identifier, or as the name of a format argument.
    is_part = len(parts(identifier)) > 1 or "_" in identifier
    return kind in ("comment", "code") or is_part or (kind == "literal" and before == "{")


def findings(name, text):
    for kind, start, region in regions(name, text):
        for match in IDENTIFIER.finditer(region):
            before = region[match.start() - 1 : match.start()]
            for word in parts(match.group()):
                if is_error(kind, word, match.group(), before):
                    yield start + match.start(), word


def main():
    folders = sys.argv[1:] or ["."]
    root = subprocess.run(["git", "rev-parse", "--show-toplevel"], check=True, capture_output=True, text=True)
    root = root.stdout.strip()
    listed = subprocess.run(["git", "ls-files", "-z", "--", *folders], check=True, capture_output=True, cwd=root)
    names = [name for name in listed.stdout.decode().split("\0") if name.endswith(tuple(n[1:] for n in NAMES))]
    count = 0
    for name in sorted(names):
        try:
            with open(f"{root}/{name}", encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError):
            continue
        for place, word in findings(name, text):
            line = text.count("\n", 0, place) + 1
            print(f"{name}:{line}: {word}: {text.splitlines()[line - 1].strip()[:120]}")
            count += 1
    if count:
        print(f"{count} words that do not say which process, thread or caller is meant", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
