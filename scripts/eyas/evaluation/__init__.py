"""Does the draft make serving faster? How many tokens it gains a step, what a step costs, and what that makes together.

walk.py       the reference: a chain of drafts verified by the target in this process, exact, greedy or sampled
prompts.py    what is asked: held-out samples of the corpus, and public benchmark sets
acceptance.py counts of accepted drafts → acceptance length, rates by position, what other lengths of chains would give
summary.py    evaluation/summary.json: all figures, what is odd about them, and the verdict
"""
