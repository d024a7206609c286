"""`python -m sglang.launch_server`, as the fake server."""

import argparse

from sglang.srt.server_args import ServerArgs, fake_server

if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    options = parser.parse_args()
    options.model = options.model_path
    options.drafts = options.speculative_num_steps if options.speculative_draft_model_path else None
    fake_server.run(options)
