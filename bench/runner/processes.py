"""What the kernel knows of processes: trees, CPU clocks, memory, ports, and how to end them."""

import os
import select
import signal
import socket
import time
from pathlib import Path


class Process:
    """One process as /proc shows it at this moment."""

    def __init__(self, pid, parent, session, name):
        self.pid, self.parent, self.session, self.name = pid, parent, session, name


def read_process(pid):
    """The live process `pid`, or None."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] == "Z":
        return None
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        name = text[text.index("(") + 1 : text.rindex(")")]
    return Process(pid, int(fields[1]), int(fields[3]), name)


def tree(root):
    """All live processes below `root`, or in the session it leads."""
    found = [read_process(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    everyone = {process.pid: process for process in found if process}
    members = {pid for pid, process in everyone.items() if root in (pid, process.session)}
    while True:
        children = {p.pid for p in everyone.values() if p.parent in members} - members
        if not children:
            return [everyone[pid] for pid in sorted(members)]
        members |= children


def cpu_seconds(pid):
    """CPU time of a process so far, from its own clock: /proc has only hundredths of a second."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def resident_bytes(pid):
    """VmRSS of a process."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def own_share_bytes(pid):
    """Pss of a process: its own pages, and its share of those that others have, too."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def owns_port(pids, port):
    """Whether the listener on `port` belongs to one of `pids`, and not to another process."""
    inodes = listening_inodes(port)
    for pid in pids:
        try:
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if link.startswith("socket:[") and link[8:-1] in inodes:
                    return True
        except OSError:
            continue
    return False


def listening_inodes(port):
    """Inodes of the sockets that listen on `port`."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                found.add(fields[9])
    return found


def wait_until(condition, seconds, every=0.05):
    """Asks `condition` until it holds; whether it did in time. For what announces itself in no other way."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def wait_until_quiet(pids, seconds=15, window=0.5, share=0.02):
    """Waits until the processes use less than `share` of a CPU for `window` seconds."""
    deadline = time.monotonic() + seconds
    before = sum(map(cpu_seconds, pids))
    while time.monotonic() < deadline:
        time.sleep(window)  # the window over which CPU use is observed
        now = sum(map(cpu_seconds, pids))
        if now - before < share * window:
            return
        before = now


def end_tree(process, patience=10):
    """Ends a child of ours: the child gently, what it leaves behind gently, the rest by force."""
    handles = {}
    for member in tree(process.pid):
        try:
            handles[member.pid] = os.pidfd_open(member.pid)
        except ProcessLookupError:
            pass
    if process.poll() is None:
        process.terminate()
        wait_ended({pid: fd for pid, fd in handles.items() if pid == process.pid}, patience)
    for number, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, 5)):
        if wait_ended(handles, 0):
            break
        for descriptor in handles.values():
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                pass
        wait_ended(handles, seconds)
    process.wait()
    for descriptor in handles.values():
        os.close(descriptor)


def wait_ended(handles, seconds):
    """Waits for processes by their pidfds; whether all have ended."""
    deadline = time.monotonic() + seconds
    waiting = set(handles.values())
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting:
        ended = poll.poll(max(0, deadline - time.monotonic()) * 1000)
        if not ended:
            return False
        for descriptor, _ in ended:
            poll.unregister(descriptor)
            waiting.discard(descriptor)
    return True
