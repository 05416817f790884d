/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of --help: for each command what it does, its options, its exit codes. */
#include "client/cli/help.h"

#define COMMON                                                                         \
    "\n"                                                                               \
    "  --socket PATH      the daemon's socket (default: $KVWHEEL_SOCKET, else\n"       \
    "                     $XDG_RUNTIME_DIR/kvwheel/kvwheeld.sock, else\n"              \
    "                     /tmp/kvwheel-UID/kvwheeld.sock)\n"                           \
    "  --json             one JSON value on stdout; a failure is one, too:\n"          \
    "                     {\"error\": .., \"text\": .., \"need\": .., \"have\": ..}\n" \
    "  --help\n"

#define EXIT_CODES                                                           \
    "\n"                                                                     \
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no daemon is running,\n" \
    "4 refused by the daemon.\n"

#define SPEC                                                                          \
    "\n"                                                                              \
    "What the cache is, one of:\n"                                                    \
    "  --preset NAME      a model by name; --preset help lists them\n"                \
    "  --config PATH      a Hugging Face config.json, or its folder\n"                \
    "  or one group `self` of planes k and v:\n"                                      \
    "    --layers N --heads N --head-dim N --window ROWS   (all four)\n"              \
    "    --chunk ROWS         rows of the largest chunk (default 1)\n"                \
    "    --sink ROWS          first rows, never evicted (default 0)\n"                \
    "    --keep-rows ROWS     room for kept rows beside the window (default 0)\n"     \
    "    --slack CHUNKS       room beside the window (default 1)\n"                   \
    "    --kind chunk|row     what a query sees: chunk (video, default) or row\n"     \
    "    --positions absolute|window\n"                                               \
    "                         of a row: its number (default) or index in a view\n"    \
    "    --policy roll|refuse when it is full: the oldest rows leave (default),\n"    \
    "                         or no more come in\n"                                   \
    "  The window includes the sink and the chunk.\n"                                 \
    "\n"                                                                              \
    "  --dtype TYPE       f32, bf16, f16, i8, u8, u32 (default: the model's, else\n"  \
    "                     bf16); not with --preset\n"                                 \
    "  --context ROWS     window of full-attention layers, with --preset, --config\n" \
    "  --contiguous       every group: past and current rows are one piece of\n"      \
    "                     memory, mapped twice in a row. Takes up to a page of\n"     \
    "                     rows more, and 3 of the mappings that vm.max_map_count\n"   \
    "                     allows for each layer, plane, lane and head\n"              \
    "  --checksums        commit writes a checksum of every row, plane and head, 4\n" \
    "                     bytes each; kvwheel verify compares them\n"                 \
    "  --pages none|thp|2M\n"                                                         \
    "                     of the rows: 4 KiB (default), transparent huge ones, or\n"  \
    "                     2 MiB ones of the host's pool; kvwheel doctor says what\n"  \
    "                     the host gives, kvwheel show what became of it\n"           \
    "  --placement spread|follow|interleave|node:N|map:N,N,...\n"                     \
    "                     NUMA nodes: layers dealt evenly (default); each rank's\n"   \
    "                     part where its worker runs; blocks by turns; all on one;\n" \
    "                     a node for each rank. kvwheel plan shows which\n"           \
    "  --lanes N          independent sequences (default 1)\n"                        \
    "\n"                                                                              \
    "How ranks share it, in parts of heads x layers x lanes x rows:\n"                \
    "  --ranks N          ranks in all (default: the product of the parts below);\n"  \
    "                     the heads are split in what those parts leave of them\n"    \
    "  --layer-parts N    parts of the model's layers (default 1)\n"                  \
    "  --lane-parts N     parts of the lanes (default 1)\n"                           \
    "  --row-parts N      parts of the rows (default 1)\n"                            \
    "  --row-block ROWS   rows in a row of one rank, with --row-parts\n"

const char help_head[] =
    "usage: kvwheel [--socket PATH] [--json] COMMAND [options]\n"
    "\n"
    "Looks after rolling KV caches that live outside the processes that generate.\n"
    "\n";

const char help_tail[] =
    "  help     the options of a command (as COMMAND --help)\n" COMMON "  --version\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage (or a cache whose numbers contradict\n"
    "each other), 3 no daemon is running, 4 refused by the daemon (its words are\n"
    "printed), 5 status and doctor: it works, but something of the host is degraded,\n"
    "6 verify only: the cache is damaged.\n";

const char help_start[] =
    "usage: kvwheel start [--foreground] [options]\n"
    "       kvwheel start --hosts LIST [--agent COMMAND] [options]\n"
    "\n"
    "Start a daemon at the socket and wait until it answers. One that runs already\n"
    "is a success, and stays as it is. kvwheeld is taken from $KVWHEELD, from beside\n"
    "kvwheel, from where it was installed, or from $PATH; it logs to PATH.log.\n"
    "\n"
    "  --foreground       become the daemon, logging to stderr; the exit codes are\n"
    "                     those of kvwheeld --help\n"
    "  --hosts LIST       one on each of h0,h1,...: the launch agent runs this\n"
    "                     command there, from the same path; exit 1 if one fails\n"
    "  --agent COMMAND    takes a host and the words of a shell command (default:\n"
    "                     $KVWHEEL_AGENT, else ssh -o BatchMode=yes -o\n"
    "                     ConnectTimeout=5)\n"
    "  --quota SIZE|N%    most bytes of all caches (default 80% of memory); SIZE is\n"
    "                     in bytes, or with K, M, G or T (powers of 1024)\n"
    "  --quota-user SIZE|N%\n"
    "                     most bytes of one user's caches (default 80% of memory)\n"
    "  --log-level LEVEL  error, warn, info (default) or debug\n" COMMON EXIT_CODES;

const char help_stop[] =
    "usage: kvwheel stop [--force]\n"
    "\n"
    "Stop the daemon and its keeper, and wait until they are gone.\n"
    "\n"
    "  -f, --force        although caches exist; they are lost\n" COMMON EXIT_CODES;

const char help_restart[] =
    "usage: kvwheel restart\n"
    "\n"
    "Replace the daemon and its keeper by the kvwheeld that is installed where they\n"
    "were started from. Caches and attachments stay, workers go on. If the new one\n"
    "does not serve (caches of another layout are not adopted), the old one comes\n"
    "back; why, is printed here and by kvwheel status.\n" COMMON EXIT_CODES;

const char help_run[] =
    "usage: kvwheel run --hosts LIST [options] -- mpirun ...\n"
    "\n"
    "Run an MPI job whose caches outlive it. The daemon of every host is asked\n"
    "first. mpirun gets the hosts (as its default hostfile) and what makes Open MPI\n"
    "notice a lost host within seconds; settings in OMPI_MCA_... that you made stay.\n"
    "What was the matter is said on stderr, with the names of hosts that no longer\n"
    "answer.\n"
    "\n"
    "  --hosts LIST       h0:2,h1:2,...: hosts, and how many ranks each takes (1)\n"
    "  --agent COMMAND    as in kvwheel start --help\n"
    "  --timeout SECONDS  of one launch; then it is ended, and killed 5 s later\n"
    "  --relaunch N       start again, up to N times, after a lost host, a killed\n"
    "                     rank or a time-out: with the same command and as many\n"
    "                     slots, on the hosts that answer\n" COMMON "\n"
    "Exit codes: 0, or the program's own; 101 lost host, 102 a rank was killed,\n"
    "103 the job could not start, 104 timed out, 128+N ended by signal N; 2 wrong\n"
    "usage.\n";

const char help_status[] =
    "usage: kvwheel status\n"
    "\n"
    "How the daemon is: processes, caches, memory, and what the host does not\n"
    "permit.\n" COMMON "\n"
    "Exit codes: 0 well, 1 failed, 2 wrong usage, 3 no daemon is running, 5 it\n"
    "works, but something is degraded (what, is printed).\n";

const char help_logs[] =
    "usage: kvwheel logs [--follow] [-n LINES]\n"
    "\n"
    "What a daemon that kvwheel start, or a program, has started at the socket has\n"
    "logged: PATH.log, and PATH.log.1 before it. It is read from the files, and is\n"
    "there whether a daemon runs or has died. One in the foreground logs to its\n"
    "stderr, one of systemd to the journal.\n"
    "\n"
    "  -f, --follow       go on with what comes; with --json one object a line\n"
    "  -n, --lines N      only the last N lines of what is there\n" COMMON EXIT_CODES;
const char help_doctor[] =
    "usage: kvwheel doctor\n"
    "\n"
    "Look for what is wrong. What the host must give is tried by kvwheeld itself\n"
    "(kvwheeld --check-host): io_uring and its operations, sealed shared memory,\n"
    "watching processes, limits, memory and cgroups, huge pages, NUMA. Then the\n"
    "socket and its folder; the daemon and its keeper, if they run, with all that\n"
    "they say is degraded. A line each: ok; note (it works, something is missing);\n"
    "wrong (it does not work). The command that mends it follows after a $.\n" COMMON
    "\n"
    "Exit codes: 0 all is well, 1 something is wrong, 2 wrong usage, 5 it works,\n"
    "with notes.\n";

const char help_create[] =
    "usage: kvwheel create [--name NAME] (--preset NAME | --config PATH | flags)\n"
    "                      [options]\n"
    "\n"
    "Make a cache, fully allocated. The same again is a success and changes nothing.\n"
    "\n"
    "  --name NAME        of the cache (default: the preset's, the model's type)\n"
    "  --lifetime job|ttl:SECONDS|keep\n"
    "                     when the daemon removes it by itself: when the last\n"
    "                     process has detached, SECONDS later, never (default)\n"
    "  --mode MODE        permissions in octal, like a file's (default 0600)\n"
    "  -q, --quiet        no progress on stderr\n" SPEC COMMON EXIT_CODES;

const char help_size[] =
    "usage: kvwheel size (--preset NAME | --config PATH | flags) [options]\n"
    "\n"
    "Bytes of a cache per layer, group and rank and in all: what create allocates.\n"
    "Allocates nothing and needs no daemon.\n" SPEC COMMON EXIT_CODES;

const char help_plan[] =
    "usage: kvwheel plan (--preset NAME | --config PATH | flags) [options]\n"
    "\n"
    "On which NUMA node each part of a cache would lie, and why. Allocates nothing\n"
    "and needs no daemon. The machine is this one, or another by $HWLOC_SYNTHETIC\n"
    "(\"pack:2 [numa(memory=64GB)] core:8 pu:1\") or $HWLOC_XMLFILE (lstopo\n"
    "file.xml), whose nodes then give all that they have.\n" SPEC COMMON "\n"
    "Exit codes: 0 it fits, 1 it does not (need and have are printed), 2 wrong "
    "usage.\n";

const char help_ls[] =
    "usage: kvwheel ls\n"
    "\n"
    "List the caches: bytes, ranks owned of all, lanes, processes attached, since\n"
    "when they exist, how long ago they were used. One that was removed while\n"
    "processes are attached is listed until they detach.\n" COMMON EXIT_CODES;

const char help_show[] =
    "usage: kvwheel show [--numa] NAME\n"
    "\n"
    "A cache's groups, planes and windows, its bytes, what each rank holds of it,\n"
    "and for every lane and rank the step and the rows committed. The latter are\n"
    "read by attaching for a moment, which is left out where it would end the cache\n"
    "(lifetime job, nobody attached). A ttl begins anew.\n"
    "\n"
    "  --numa             instead, NUMA nodes: of each rank where its part should\n"
    "                     lie and why, and where each of its pages does lie, asked\n"
    "                     of the kernel now\n" COMMON EXIT_CODES;

const char help_move[] =
    "usage: kvwheel move NAME --rank R --node N\n"
    "\n"
    "Move the part of a rank to a NUMA node. Workers go on reading and writing it;\n"
    "the kernel moves page by page. The daemon needs CAP_SYS_NICE for it.\n"
    "\n"
    "  --rank R\n"
    "  --node N\n" COMMON EXIT_CODES;

const char help_topo[] =
    "usage: kvwheel topo\n"
    "\n"
    "Draw the machine: packages, NUMA nodes, CPUs, memory; and, if a daemon runs, the\n"
    "ranks of its caches on their nodes, with the CPUs of who holds them.\n" COMMON "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage.\n";

const char help_verify[] =
    "usage: kvwheel verify NAME\n"
    "\n"
    "Check a cache: header, sizes and seals of its segments, what each rank has\n"
    "published of each lane, that the ranks of a lane agree; and, if it was created\n"
    "with --checksums, every row that is visible. Works while it is in use, reads\n"
    "each visible row once, and holds nothing: a row that is overwritten meanwhile is\n"
    "skipped and counted. A ttl begins anew.\n" COMMON "\n"
    "Exit codes: 0 nothing is wrong, 1 failed, 2 wrong usage, 3 no daemon is running,\n"
    "4 refused by the daemon, 6 damaged (what, is printed).\n";

const char help_who[] =
    "usage: kvwheel who [NAME]\n"
    "\n"
    "Who is attached to the cache (or to any): rank, process, since when, and what\n"
    "it pins.\n" COMMON EXIT_CODES;

const char help_kick[] =
    "usage: kvwheel kick NAME (--rank R | --attachment ID)\n"
    "\n"
    "Kill the process that holds a rank, or that has an attachment (see kvwheel\n"
    "who), and wait until it is dead. Nothing else takes a rank from a process that\n"
    "is stopped.\n"
    "\n"
    "  --rank R\n"
    "  --attachment ID\n" COMMON EXIT_CODES;

const char help_rm[] =
    "usage: kvwheel rm [-f] NAME...\n"
    "\n"
    "Remove caches. All are tried; the exit code is that of the last failure.\n"
    "\n"
    "  -f, --force        although processes are attached: they keep their bytes\n"
    "                     until they detach, and learn of it\n" COMMON EXIT_CODES;

const char help_gc[] =
    "usage: kvwheel gc [--idle SECONDS] [--dry-run]\n"
    "\n"
    "Remove caches to which nobody is attached and whose lifetime has ended.\n"
    "\n"
    "  --idle SECONDS     and all that nobody has used for so long, whatever their\n"
    "                     lifetime\n"
    "  -n, --dry-run      only say how many and how much\n" COMMON EXIT_CODES;
