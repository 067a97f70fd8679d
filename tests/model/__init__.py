"""Random programs of a small language, an oracle that knows nothing of the library, aimed faults.

``language`` has the terms, ``generate`` draws them, ``printer`` makes Python source of them, as a
stranger would write it; ``oracle`` says what a program may come to; ``world`` is what is outside;
``schedule`` has the faults; ``runner`` lives a run on a simulated disk, ``between`` and ``forks``
have what people do between two lives; ``rules`` judges it, ``logs`` its log behind each life;
``shrink`` makes a failing case small; ``table`` counts which fault hit what. See ``__main__``.
"""
