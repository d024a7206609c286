"""Try the draft with every chain and tree of evaluate.sweep, at the serving concurrency: which is the fastest?

    python scripts/sweep_evaluation.py --out evaluation/sweep.json

Reads what evaluate_draft.py does. What was tried is kept in state/evaluation/: a run that was killed goes on.
"""

from evaluate_draft import add_places, places_of
from eyas.commands import add_out, log_to_stderr, parser_of, run_command
from eyas.config import Evaluation, load
from eyas.evaluation.engines import drafted_by, try_draft
from eyas.evaluation.prompts import in_turns, read_prompts
from eyas.evaluation.sweep import sweep_summary, swept
from eyas.records import write_json


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_places(parser)
    add_out(parser, "sweep.json")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).evaluate_settings()
    evaluation, at = Evaluation.model_validate(settings["evaluate"]), places_of(args)
    served = settings["target"]["engine"] == "sglang"
    engine, concurrency = ("sglang", evaluation.serving_concurrency) if served else ("walk", 1)
    prompts = in_turns(read_prompts(args.prompts), evaluation.sweep.prompts)
    trials = [
        (drafting, try_draft(engine, drafted_by(settings, drafting), prompts, at, [concurrency])[0])
        for drafting in swept(evaluation, engine)[0]
    ]
    write_json(args.out, {**sweep_summary(evaluation, engine, concurrency, trials), "settings": settings})
    return 0


if __name__ == "__main__":
    run_command(main)
