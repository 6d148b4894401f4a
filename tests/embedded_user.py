"""A process that uses a LocalPostgres: `embedded_user.py FOLDER [UID]`, where root may become another user.

It says `ready DSN` or `error TEXT`, then stops at the end of its input and says `stopped True` or
`stopped False`. Lines that it was told to report come as `report TEXT`.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from corevo.embedded import LocalPostgres
from corevo.programs import EmbeddedPostgresError


def main(folder: str, uid: str = "") -> None:
    if uid:
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    server = LocalPostgres(Path(folder), {"fsync": "off"}, lambda line: print("report", line, flush=True))
    try:
        server.start()
        print("ready", server.create_database("corevo"), flush=True)
    except EmbeddedPostgresError as error:
        print("error", str(error).replace("\n", " "), flush=True)
        return
    sys.stdin.read()
    print("stopped", server.stop(), flush=True)


main(*sys.argv[1:])
