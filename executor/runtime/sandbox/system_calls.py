"""The filter of system calls (seccomp, in classic BPF) for a process that runs code of a model.

It lists what is refused: all by which a process reaches the network, another process, or a file that it was not given,
by which it becomes another program or two, or changes the machine. Calls that are newer than the list do not exist.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Mapping
from typing import TypeAlias

# Code, jump if true, jump if false, and the operand; None stands for the process's own number.
Instruction: TypeAlias = tuple[int, int, int, int | None]

# Audit's names of machines, by what `platform` says of them, and the column of their numbers below.
_MACHINES: Mapping[str, tuple[int, int]] = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}
# The highest number that the table below was made for, the same on both machines.
_LAST = 450

_LOAD, _EQUAL, _ABOVE, _AND, _RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
_KILL, _ALLOW, _ERROR = 0x80000000, 0x7FFF0000, 0x00050000
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
# CLONE_THREAD and CLONE_FILES.
_THREAD = 0x10000 | 0x400
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPES = 1, 1, 0xF
_O_ACCMODE, _O_TRUNC = 0x3, 0x200

# Numbers on x86_64 and aarch64; "-" where there is no such call.
_REFUSED = """
socket 41 198            connect 42 203           bind 49 200              listen 50 201
accept 43 202            accept4 288 242          sendmsg 46 211           sendmmsg 307 269
recvmsg 47 212           recvmmsg 299 243         setsockopt 54 208
fork 57 -                vfork 58 -               execve 59 221            execveat 322 281
tkill 200 130            rt_sigqueueinfo 129 138  setsid 112 157           setpgid 109 154
pidfd_send_signal 424 424  pidfd_open 434 434     pidfd_getfd 438 438      ptrace 101 117
process_vm_readv 310 270 process_vm_writev 311 271  process_madvise 440 440  process_mrelease 448 448
kcmp 312 272             setpriority 141 140      ioprio_set 251 30
move_pages 279 239       migrate_pages 256 238    unshare 272 97           setns 308 268
mount 165 40             umount2 166 39           pivot_root 155 41        chroot 161 51
fsopen 430 430           fsconfig 431 431         fsmount 432 432          fspick 433 433
open_tree 428 428        move_mount 429 429       mount_setattr 442 442    quotactl 179 60
quotactl_fd 443 443      name_to_handle_at 303 264  open_by_handle_at 304 265  truncate 76 45
mknod 133 -              mknodat 259 33           fanotify_init 300 262    fanotify_mark 301 263
io_uring_setup 425 425   io_uring_enter 426 426   io_uring_register 427 427
io_setup 206 0           io_destroy 207 1         io_submit 209 2          io_cancel 210 3
io_getevents 208 4       io_pgetevents 333 292    userfaultfd 323 282      perf_event_open 298 241
inotify_init 253 -       inotify_init1 294 26     inotify_add_watch 254 27
bpf 321 280              seccomp 317 277          add_key 248 217          request_key 249 218
keyctl 250 219           shmget 29 194            shmat 30 196             shmctl 31 195
semget 64 190            semop 65 193             semctl 66 191            semtimedop 220 192
msgget 68 186            msgsnd 69 189            msgrcv 70 188            msgctl 71 187
mq_open 240 180          mq_unlink 241 181        mq_timedsend 242 182     mq_timedreceive 243 183
mq_notify 244 184        mq_getsetattr 245 185    modify_ldt 154 -         personality 135 92
acct 163 89              adjtimex 159 171         clock_adjtime 305 266    clock_settime 227 112
settimeofday 164 170     init_module 175 105      finit_module 313 273     delete_module 176 106
kexec_load 246 104       kexec_file_load 320 294  reboot 169 142           swapon 167 224
swapoff 168 225          sethostname 170 161      setdomainname 171 162    syslog 103 116
vhangup 153 58           iopl 172 -               ioperm 173 -             lookup_dcookie 212 18
nfsservctl 180 42        uselib 134 -             sysfs 139 -
"""
# Rules for files do not cover these. They do nothing and say that they did, so that copying a file in the own folder
# works, and that whether a test passes does not depend on the machine.
_WITHOUT_EFFECT = """
chmod 90 -               fchmod 91 52             fchmodat 268 53          chown 92 -
fchown 93 55             lchown 94 -              fchownat 260 54          utime 132 -
utimes 235 -             futimesat 261 -          utimensat 280 88
"""
_NO_ATTRIBUTES = """
setxattr 188 5           lsetxattr 189 6          fsetxattr 190 7
removexattr 197 14       lremovexattr 198 15      fremovexattr 199 16
"""
# The C library does without, for threads and for files.
_MISSING = """
clone3 435 435           openat2 437 437          memfd_create 319 279     memfd_secret 447 447
"""
# Those that are refused by their arguments.
_BY_ARGUMENTS = """
clone 56 220             socketpair 53 199        sendto 44 206            open 2 -
openat 257 56            fcntl 72 25              ioctl 16 29              prctl 157 167
kill 62 129              tgkill 234 131           rt_tgsigqueueinfo 297 240  prlimit64 302 261
sched_setaffinity 203 122  sched_setattr 314 274  sched_setparam 142 118   sched_setscheduler 144 119
"""
# Who gets the signals of a file, which signal, and leases.
_FCNTL = (8, 10, 15, 1024)
# The same for sockets, characters typed into a terminal, and attributes of files.
_IOCTL = (0x8901, 0x8902, 0x5412, 0x541C, 0x40086602, 0x401C5820)
# Names of threads and of memory.
_PRCTL = (15, 16, 0x53564D41)


def filter_of(machine: str | None = None) -> list[Instruction] | None:
    """The filter's program for a machine, by default this one; None for one whose system calls are not known here."""
    name = platform.machine() if machine is None else machine
    if name not in _MACHINES:
        return None
    audit, column = _MACHINES[name]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER), (_ABOVE, 0, 1, _LAST), _refuse(errno.ENOSYS),
    ]  # fmt: skip
    for calls, code in (
        (_REFUSED, errno.EPERM),
        (_WITHOUT_EFFECT, 0),
        (_NO_ATTRIBUTES, errno.ENOTSUP),
        (_MISSING, errno.ENOSYS),
    ):
        for number in _numbers(calls, column).values():
            program += [(_EQUAL, 0, 1, number), _refuse(code)]
    for call, number in _numbers(_BY_ARGUMENTS, column).items():
        rules = [*_argument_rules(call), (_RETURN, 0, 0, _ALLOW)]
        program += [(_EQUAL, 0, len(rules), number), *rules]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _argument_rules(call: str) -> list[Instruction]:
    """What refuses a call; what comes through is allowed."""
    refuse = _refuse(errno.EPERM)
    match call:
        case "clone":
            # Descriptors of its own would not be seen among those of the process.
            return [_argument(0), (_AND, 0, 0, _THREAD), (_EQUAL, 1, 0, _THREAD), refuse]
        case "socketpair":
            # Event loops wake themselves by one. A datagram socket could be sent from to any other.
            kind = [_argument(1), (_AND, 0, 0, _SOCK_TYPES), (_EQUAL, 1, 0, _SOCK_STREAM), refuse]
            return [_argument(0), (_EQUAL, 1, 0, _AF_UNIX), refuse, *kind]
        case "sendto":
            halves = [[_argument(4, half), (_EQUAL, 1, 0, 0), refuse] for half in (0, 1)]
            return [*halves[0], *halves[1]]
        case "open" | "openat":
            # Opening a file to be read can empty it, and rules for files see that from Linux 6.2 on. The third way to
            # open one, neither to read nor to write, they do not see at all, and devices take commands through it.
            flags = _argument(1 if call == "open" else 2)
            neither = [flags, (_AND, 0, 0, _O_ACCMODE), (_EQUAL, 0, 1, _O_ACCMODE), refuse]
            return [*neither, flags, (_AND, 0, 0, _O_ACCMODE | _O_TRUNC), (_EQUAL, 0, 1, _O_TRUNC), refuse]
        case "fcntl" | "ioctl":
            known = _FCNTL if call == "fcntl" else _IOCTL
            return [_argument(1), *(part for one in known for part in ((_EQUAL, 0, 1, one), refuse))]
        case "prctl":
            allowed = [part for one in _PRCTL for part in ((_EQUAL, 0, 1, one), (_RETURN, 0, 0, _ALLOW))]
            return [_argument(0), *allowed, refuse]
        case "kill" | "tgkill" | "rt_tgsigqueueinfo":
            return [_argument(0), (_EQUAL, 1, 0, None), refuse]
    # 0 means the caller.
    return [_argument(0), (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, None), refuse]


def _numbers(calls: str, column: int) -> dict[str, int]:
    words = calls.split()
    rows = [words[at : at + 3] for at in range(0, len(words), 3)]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _argument(index: int, half: int = 0) -> Instruction:
    """Loads half an argument, the lower one first."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index + 4 * half)


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERROR | code)
