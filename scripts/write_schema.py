"""Write the JSON schema of the configuration, for editors that complete and check YAML.

python scripts/write_schema.py config/schema.json
"""

import argparse
from pathlib import Path

from eyas.config import schema
from eyas.errors import run_command
from eyas.records import write_json


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where to write it")
    write_json(parser.parse_args(argv).out, schema())
    return 0


if __name__ == "__main__":
    run_command(main)
