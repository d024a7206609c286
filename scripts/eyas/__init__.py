"""eyas: prepares data for EAGLE-3 draft models, lets the target answer, trains, and measures.

Configuration, and what is made anew
config.py            every key: what it may hold, which settings decide what a stage makes
differences.py       which settings changed since a file was made; `fingerprint`, the name of a run
rebuild.py           what is rebuilt though it exists: the stand-in by which Snakemake learns it
storage.py           folders that lie on other disks; a disk that cannot hold what is to come

Data: prepared/
sources.py           files of the Hub, a folder or a package, downloaded, pinned, checked
readers.py           their rows, a batch at a time
adapters/            one module a dataset: its row → a conversation
prepare.py           one dataset, from its files to its records
prepare_rows.py      rows → candidates (`candidate_of`)
prepare_lines.py     candidates → lines: a row becomes a record, or a reject (`Encoder`)
prepare_shards.py    one dataset read by several jobs
selection.py         repeats dropped, at most a cap kept
ledger.py            what became of each row, counted
records.py           the record formats and their check; `whole_file`: each atomic write but a download's and a shard's
chat/                messages → token ids and loss mask (`Chat.encode`)

Answers: responses/
generate.py          one dataset's prompts answered by the target (`_record` makes the answers' loss mask)
journal.py           each finished item once, safe when the job is killed
target/              engines that ask the target, the life of its server
gpus.py              a GPU is assigned (`lease`)

Corpus and states: corpus/, draft_vocab/, hidden_states/
corpus.py            all records in one order, without repeats, split into train and heldout
corpus_spill.py      its two steps in worker processes
vocabulary.py        the tokens that the draft can propose
layers.py            which layers the draft reads, and their numbers in SGLang
capture.py           the target's states on one shard of the corpus
states.py            the file of a shard (`ShardWriter`, `Shard`)
states_encoding.py   bf16 or fp8 in it
agreement.py         states are judged: are they those that the target chose its words from (`Judge`)
window.py            shards that come and go during the training
plan.py              tokens, disk and hours, before days are spent

The draft: draft/
eagle3/              the model, its training-time test, its training
compute.py           what a device computes fast; the first choice out of a vocabulary

Evaluation: evaluation/, deploy/
evaluation/          does the draft make serving faster
deployment.py        the draft with its card, the server's command, the push to the Hub
deployment_check.py  the check that goes with it: the running server is asked

What people read: reports/, `make status`, `snakemake tally`
status.py            where a run stands, now; status_text.py words it
tally.py             how many valid records there are, and what is wrong with the rest
tally_built.py       the same of corpus, vocabulary, states and draft
report.py            all pages in one document, also half-way through a run
describe_run.py      its first page, the whole run; describe_*.py: the others, one module a kind
pages.py             their pieces: sections, tables, tokens; charts.py: pictures; theme.py: colours, styles, sorting
cost.py              hours and GPU-hours by stage

Tools
commands.py          what the scripts share: how a command ends, and its arguments
errors.py            EyasError: what ends a command with one clear line
progress.py          how far a long job is
workers.py           worker processes, results in order
hub.py               one file of a model
"""
