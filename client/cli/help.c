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

#define SPEC                                                                           \
    "\n"                                                                               \
    "What the cache is, one of:\n"                                                     \
    "  --preset NAME      a model by name; --preset help lists them\n"                 \
    "  --config PATH      a Hugging Face config.json, or its folder\n"                 \
    "  or one group `self` of planes k and v:\n"                                       \
    "    --layers N --heads N --head-dim N --window ROWS   (all four)\n"               \
    "    --chunk ROWS         rows of the largest chunk (default 1)\n"                 \
    "    --sink ROWS          first rows, never evicted (default 0)\n"                 \
    "    --keep-rows ROWS     room for kept rows beside the window (default 0)\n"      \
    "    --slack CHUNKS       room beside the window (default 1)\n"                    \
    "    --kind chunk|row     what a query sees: chunk (video, the default) or row\n"  \
    "    --positions absolute|window\n"                                                \
    "    --policy roll|refuse when it is full\n"                                       \
    "\n"                                                                               \
    "  --dtype TYPE       f32, bf16, f16, i8, u8 (default: the model's, else bf16);\n" \
    "                     not with --preset\n"                                         \
    "  --context ROWS     window of full-attention layers, with --preset and "         \
    "--config\n"                                                                       \
    "  --ranks N          split the heads over N ranks (default 1)\n"                  \
    "  --lanes N          independent sequences (default 1)\n"

const char help_head[] =
    "usage: kvwheel [--socket PATH] [--json] COMMAND [options]\n"
    "\n"
    "Looks after rolling KV caches that live outside the processes that generate.\n"
    "\n";

const char help_tail[] =
    "  help     the options of a command (as COMMAND --help)\n" COMMON "  --version\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage (or a cache whose numbers contradict "
    "each\n"
    "other), 3 no daemon is running, 4 refused by the daemon (its words are printed),\n"
    "5 status only: the daemon works, but something of the host is degraded.\n";

const char help_start[] =
    "usage: kvwheel start [--foreground] [options]\n"
    "\n"
    "Start a daemon at the socket and wait until it answers. One that runs already is "
    "a\n"
    "success. kvwheeld is taken from $KVWHEELD, from beside kvwheel, from where it "
    "was\n"
    "installed, or from $PATH; it logs to PATH.log.\n"
    "\n"
    "  --foreground       become the daemon, logging to stderr\n"
    "  --quota SIZE|N%    most bytes of all caches (default 80% of memory)\n"
    "  --quota-user SIZE|N%\n"
    "                     most bytes of one user's caches\n"
    "  --log-level LEVEL  error, warn, info or debug\n" COMMON EXIT_CODES;

const char help_stop[] =
    "usage: kvwheel stop [--force]\n"
    "\n"
    "Stop the daemon and its keeper, and wait until they are gone.\n"
    "\n"
    "  -f, --force        although caches exist; they are lost\n" COMMON EXIT_CODES;

const char help_status[] = "usage: kvwheel status\n"
                           "\n"
                           "How the daemon is: processes, caches, memory, and what the "
                           "host does not permit.\n" COMMON "\n"
                           "Exit codes: 0 well, 1 failed, 2 wrong usage, 3 no daemon "
                           "is running, 5 it works, but\n"
                           "something is degraded (what, is printed).\n";

const char help_create[] =
    "usage: kvwheel create [--name NAME] (--preset NAME | --config PATH | flags) "
    "[options]\n"
    "\n"
    "Make a cache, fully allocated. The same again is a success.\n"
    "\n"
    "  --name NAME        of the cache (default: the preset's, the model's type)\n"
    "  --lifetime job|ttl:SECONDS|keep\n"
    "                     when the daemon removes it by itself: when the last process "
    "has\n"
    "                     detached, SECONDS later, never (default)\n"
    "  --mode MODE        permissions in octal, like a file's (default 0600)\n"
    "  -q, --quiet        no progress on stderr\n" SPEC COMMON EXIT_CODES;

const char help_size[] =
    "usage: kvwheel size (--preset NAME | --config PATH | flags) [options]\n"
    "\n"
    "Bytes of a cache per layer, group and rank and in all. Allocates nothing and "
    "needs no\n"
    "daemon.\n" SPEC COMMON EXIT_CODES;

const char help_ls[] = "usage: kvwheel ls\n"
                       "\n"
                       "List the caches.\n" COMMON EXIT_CODES;

const char help_show[] = "usage: kvwheel show NAME\n"
                         "\n"
                         "A cache's groups, planes and windows, its bytes, and for "
                         "every lane and rank the step\n"
                         "and the rows committed. The latter are read by attaching for "
                         "a moment, which is left\n"
                         "out where it would end the cache (lifetime job, nobody "
                         "attached). A ttl begins anew.\n" COMMON EXIT_CODES;

const char help_who[] =
    "usage: kvwheel who [NAME]\n"
    "\n"
    "Who is attached to the cache (or to any): rank, process, since when, and what it\n"
    "pins.\n" COMMON EXIT_CODES;

const char help_kick[] = "usage: kvwheel kick NAME (--rank R | --attachment ID)\n"
                         "\n"
                         "Kill the process that holds a rank, or that has an "
                         "attachment (see `kvwheel who`),\n"
                         "and wait until it is dead. Nothing else takes a rank from a "
                         "process that is stopped.\n"
                         "\n"
                         "  --rank R\n"
                         "  --attachment ID\n" COMMON EXIT_CODES;

const char help_rm[] =
    "usage: kvwheel rm [-f] NAME...\n"
    "\n"
    "Remove caches. All are tried; the exit code is that of the last failure.\n"
    "\n"
    "  -f, --force        although processes are attached: they keep their bytes until "
    "they\n"
    "                     detach, and learn of it\n" COMMON EXIT_CODES;

const char help_gc[] =
    "usage: kvwheel gc [--idle SECONDS] [--dry-run]\n"
    "\n"
    "Remove caches to which nobody is attached and whose lifetime has ended.\n"
    "\n"
    "  --idle SECONDS     and all that nobody has used for so long, whatever their "
    "lifetime\n"
    "  -n, --dry-run      only say how many and how much\n" COMMON EXIT_CODES;
