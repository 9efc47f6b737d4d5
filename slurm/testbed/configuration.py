"""The configuration files of the testbed, with the reasons for what is not a default."""

import contextlib
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CLUSTER = "geomano"
NODES = ("node1", "node2")
# Below the range that Linux takes the ports of outgoing connections from, and those of slurm/rendezvous.py.
PORTS = range(10000, 20000)
CPUS_PER_NODE = 8  # of Slurm's count, whatever the machine has
GPUS_PER_NODE = 2  # copies of /dev/null: a job gets its devices and CUDA_VISIBLE_DEVICES, torch finds no GPU


@dataclass(frozen=True)
class Ports:
    slurmctld: int
    slurmdbd: int
    nodes: Mapping[str, int]


def unused_ports(count: int) -> list[int]:
    """Different ports of loopback that nobody uses now."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            found.append(port)
    return found


def free_ports() -> Ports:
    controller, database, *nodes = unused_ports(2 + len(NODES))
    return Ports(controller, database, dict(zip(NODES, nodes, strict=True)))


def slurm_conf(folder: Path, ports: Ports) -> str:
    host = socket.gethostname().partition(".")[0]
    nodes = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS_PER_NODE} RealMemory=8000 "
        f"Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
        for name, port in ports.nodes.items()
    ]
    partition = f"Nodes={','.join(NODES)} MaxTime=INFINITE DefaultTime=10 State=UP"
    lines = [
        f"ClusterName={CLUSTER}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports.slurmctld}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",  # loopback only
        *_section("Credentials: a requeued job waits as long as its old one is valid, 120 s by default"),
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge/socket,cred_expire=5",
        "CredType=cred/munge",
        *_section("Files; TmpFS for each node, else a PMIx step over both of them collides"),
        f"StateSaveLocation={folder}/slurmctld",
        f"SlurmdSpoolDir={folder}/slurmd/%n",
        f"TmpFS={folder / 'tmp'}/%n",
        f"SlurmctldPidFile={folder}/pid/slurmctld.own",
        f"SlurmdPidFile={folder}/pid/slurmd-%n.own",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        *_section("No cgroups and no binding: the nodes share the cores of one machine"),
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SlurmdParameters=config_overrides",
        "JobAcctGatherType=jobacct_gather/linux",
        "MpiDefault=none",
        "PropagateResourceLimits=NONE",
        *_section("Quick: the scheduler looks at a requeued job every 60 s by default"),
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_interval=1,bf_interval=2,sched_min_interval=100000,batch_sched_delay=0",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "GresTypes=gpu",
        "KillWait=10",
        "CompleteWait=0",
        "SlurmctldTimeout=60",
        "SlurmdTimeout=20",  # a node that says nothing for so long is down
        "ReturnToService=2",
        "MinJobAge=600",
        *_section("Preemption; a job's own signal (USR2) is sent only with this parameter and a grace time"),
        "JobRequeue=1",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "SlurmctldParameters=preempt_send_user_signal",
        *_section("Accounting; slurmctld finds the munge socket for slurmdbd by this pass, not by AuthInfo"),
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={ports.slurmdbd}",
        f"AccountingStoragePass={folder}/munge/socket",
        "AccountingStorageTRES=gres/gpu",
        "JobCompType=jobcomp/none",
        *_section("Two nodes; `low` is preempted by `main`, with time to write a checkpoint"),
        *nodes,
        f"PartitionName=main {partition} Default=YES PriorityTier=10 PreemptMode=OFF",
        f"PartitionName=low {partition} Default=NO PriorityTier=1 PreemptMode=REQUEUE GraceTime=30",
    ]
    return "\n".join(lines) + "\n"


def slurmdbd_conf(folder: Path, ports: Ports) -> str:
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge/socket",
        f"DbdHost={socket.gethostname().partition('.')[0]}",
        "DbdAddr=127.0.0.1",
        f"DbdPort={ports.slurmdbd}",
        "CommunicationParameters=NoInAddrAny",
        "SlurmUser=root",
        f"LogFile={folder}/log/slurmdbd.log",
        f"PidFile={folder}/pid/slurmdbd.own",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",  # the socket of MYSQL_UNIX_PORT; no password, the user of the socket counts
        "StorageUser=root",
        "StorageLoc=slurm_accounting",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(folder: Path) -> str:
    return f"NodeName={','.join(NODES)} Name=gpu File={folder}/dev/gpu[0-{GPUS_PER_NODE - 1}]\n"


def hosts_file(existing: str) -> str:
    """/etc/hosts as the nodes see it: each other's names, which a rendezvous needs."""
    return existing.rstrip("\n") + "\n" + "".join(f"127.0.0.1 {name}\n" for name in NODES)


def _section(why: str) -> Sequence[str]:
    return ("", f"# {why}.")
