"""Write the JSON schema of the configuration, for editors that complete and check YAML.

python scripts/write_schema.py config/schema.json
"""

from pathlib import Path

from eyas.commands import parser_of, run_command
from eyas.config import schema
from eyas.records import write_json


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("out", type=Path, help="where to write it")
    write_json(parser.parse_args(argv).out, schema())
    return 0


if __name__ == "__main__":
    run_command(main)
