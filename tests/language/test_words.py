"""No text of the repository uses a phrase of avoid.yaml, and the list itself is sound."""

from __future__ import annotations

import ast

import pytest

from tests.language import sources, words


def test_texts_use_standard_words() -> None:
    """Each line names the place, the phrase and the words to use; CONTRIBUTING.md has the style guide."""
    places = [str(place) for path in sources.texts() for place in words.places(path)]
    assert not places, "\n".join(places)


@pytest.mark.parametrize("phrase", words.phrases(), ids=lambda phrase: phrase.regex.pattern[:30])
def test_phrase_matches_its_examples(phrase: words.Phrase) -> None:
    """Each phrase finds all of its `matches`, also across a line break, and none of its `passes`."""
    for example in phrase.matches:
        wrapped = example.replace(" ", "\n        # ")
        for text in (example, wrapped):
            assert any(place.use == phrase.use for place in words.search("file", text)), text
    for example in phrase.passes:
        assert phrase.regex.search(sources.as_prose(example)) is None, example


@pytest.mark.parametrize("exemption", words.exemptions(), ids=lambda exemption: exemption.path)
def test_exemption_is_needed(exemption: words.Exemption) -> None:
    """Each exemption covers a file, and without it at least one of its files would break the list."""
    covered = [path for path in sources.texts() if exemption.covers(path)]
    assert covered, "no such file"
    assert exemption.reason
    if exemption.binding:
        used = [place.match for path in covered for place in words.bindings(path, sources.tree(path))]
        assert f"`{exemption.binding}`" in used
        return
    content = {path: sources.texts()[path] for path in covered}
    assert any(exemption.blank(text) != text for text in content.values()), "the text or section is missing"
    hides = any(
        len(list(words.search(path, text))) > len(list(words.search(path, exemption.blank(text))))
        for path, text in content.items()
    )
    assert hides, "the exempted text breaks no rule"


def test_bindings_reports_every_way_to_bind_a_name() -> None:
    """Variables, attributes, parameters, functions, classes, loops, handlers and imports are all searched."""
    source = """
thing = 1
self.thing = 1
def f(thing, *, other): ...
def thing(): ...
class Thing: ...
for thing in (): ...
[1 for thing in ()]
import x as thing
try: ...
except E as thing: ...
with x as _thing: ...
print(thing, self.thing)
"""
    lines = [place.line for place in words.bindings("file", ast.parse(source))]
    assert sorted(lines) == [*range(2, 10), 11, 12]
