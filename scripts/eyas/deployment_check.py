#!/usr/bin/env python3
"""Ask the running server a handful of prompts; fails when its draft is accepted too seldom, or not used at all.

    ./check [http://127.0.0.1:30000]

Needs Python alone; reads prompts.json beside it. A server without a draft is an error, too, unless launch_server.sh
leaves the draft out: it cannot be told from one whose draft was not loaded.
"""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path


def main() -> int:
    url = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:30000"
    asked = json.loads(Path(__file__).with_name("prompts.json").read_text())
    tokens = verifications = 0
    for ids in asked["prompts"]:
        sampling = {"temperature": 0, "max_new_tokens": asked["max_new_tokens"]}
        body = json.dumps({"input_ids": ids, "sampling_params": sampling}).encode()
        request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                meta = json.load(response)["meta_info"]
        except (OSError, ValueError, KeyError) as error:
            said = error.read().decode(errors="replace")[:500] if isinstance(error, urllib.error.HTTPError) else error
            print(f"error: {url} does not answer a prompt of {len(ids)} tokens: {said}", file=sys.stderr)
            return 1
        if "spec_verify_ct" not in meta and not asked.get("with_draft", True):
            print("nothing to check: launch_server.sh leaves the draft out, since serving was slower with it")
            return 0
        if "spec_verify_ct" not in meta:
            print(f"error: {url} serves without a draft: start it by launch_server.sh", file=sys.stderr)
            return 1
        tokens += meta["completion_tokens"] - 1
        verifications += meta["spec_verify_ct"]
    length = tokens / max(verifications, 1)
    words = (
        f"acceptance length {length:.2f} over {len(asked['prompts'])} prompts, expected {asked['floor']:.2f} or more"
    )
    if length < asked["floor"]:
        print(f"error: {words}: is it served with --speculative-algorithm EAGLE3, and this draft?", file=sys.stderr)
        return 1
    print(words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
