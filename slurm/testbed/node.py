"""The first process of a node. It runs in namespaces of its own: a host name, a view of /etc/hosts, its own processes.

    unshare --mount --uts --pid --fork --kill-child --mount-proc python -m geomano_hpc.slurm.testbed.node NAME FOLDER

Killed, it takes every process of its node along, as a power cut does.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    subprocess.run(["/bin/mount", "--bind", str(folder / "hosts"), "/etc/hosts"], check=True)
    socket.sethostname(name)
    slurmd = subprocess.Popen(["/usr/sbin/slurmd", "-D", "-N", name, "-f", str(folder / "slurm.conf")])
    while True:  # as the first process it inherits every orphan of the node
        pid, status = os.wait()
        if pid == slurmd.pid:
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
