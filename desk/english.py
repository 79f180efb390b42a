"""Whether a text is English, told by its commonest words. Pure, and linear in what it reads.

Names, numbers and single words of another language make no text foreign: two of the other languages' commonest words
do, where there are no more of English ones, or another script.
"""

from __future__ import annotations

import re
from itertools import islice

MOST_WORDS = 2000
_LATIN = "\u024f"  # the last letter of Latin scripts in common use

_ENGLISH = """
the and is it of you for not have with this that these be are we your can please my to has been but from there what when
how why will would i do does did they their our which if or its
"""
_GERMANIC = """
der das und ich nicht ein eine einen einem einer ist wir sie mein meine meinen mich bitte auf für mit von zu zum zur dem
bei aus haben habe wird wurde wo wie wann kein keine keinen noch aber ihr ihre ihren ihnen sind dass oder auch nach seit
unter über hier waar het niet ik mijn voor naar dit zijn heeft och att inte jag ikke jeg og
"""
_ROMANCE = """
le les une du et est je vous nous mon ma mes pas ne que qui dans avec votre vos ce cette il elle au aux j qu ai été suis
sont merci bonjour où el los las por para mi su está estoy pedido gracias favor di che sono mio mia della um uma não meu
minha é la un
"""
_EASTERN = "nie jest się proszę mój není prosím ve bir bu için değil"
_COMMON = frozenset(_ENGLISH.split())
_FOREIGN = frozenset(f"{_GERMANIC} {_ROMANCE} {_EASTERN}".split())
_WORD = re.compile(r"[^\W\d_]+")


def is_english(text: str) -> bool:
    """Whether `text` is English, or too short to tell."""
    english = foreign = 0
    for at, found in enumerate(islice(_WORD.finditer(text), MOST_WORDS)):
        word = found[0]
        folded = word.casefold()
        is_name = at > 0 and word.istitle()
        english += folded in _COMMON
        foreign += (folded in _FOREIGN and not is_name) or (not word.isascii() and (not is_name or word[0] > _LATIN))
    return foreign < 2 or foreign <= english
