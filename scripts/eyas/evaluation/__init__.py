"""Does the draft make serving faster? How many tokens it gains a step, what a step costs, and what that makes together.

walk.py       the reference: a chain of drafts verified by the target in this process, exact, greedy or sampled
prompts.py    what is asked: held-out samples of the corpus, and public benchmark sets
engines.py    one way to try a draft, whatever engine does it
trials.py     each prompt answered with the draft and without it, kept as it comes
served.py     the same on SGLang, at several concurrencies
llamacpp.py   the same by llama.cpp, an outside witness
sweep.py      other chains and trees
scaling.py    drafts trained on parts of the corpus: what more data would bring
acceptance.py counts of accepted drafts → acceptance length, rates by position, what other lengths of chains would give
summary.py    evaluation/summary.json: all figures, what is odd about them, and the verdict
causes.py     a draft that gains nothing: the known causes, and the check of each
"""

ENGINES = {"walk": "the reference", "sglang": "SGLang", "llamacpp": "llama.cpp"}  # evaluation/<engine>.jsonl → its name
