/* SPDX-License-Identifier: Apache-2.0 */
/* Flags become options; nothing else of the program reads argv. */
#include "examples/generate/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <kvwheel/kvwheel.h>

#include "examples/common/flags.h"
#include "examples/common/ranks.h"
#include "examples/generate/kernels.h"

const char options_help[] =
    "usage: [mpirun -n R] kvwheel-generate --model DIR --prompt TEXT [flags]\n"
    "\n"
    "Streams text from a Llama model past any number of windows. Keys, values, the\n"
    "token ids and the random seed live in kvwheel only, so that a run that died goes\n"
    "on where it was. R ranks, on one node or several, share the heads, up to the\n"
    "model's KV heads; with --row-parts the rows of the window as well. The text is\n"
    "the same for every R and every --chunk.\n"
    "\n"
    "On several nodes each one's daemon must run already (kvwheel start --hosts), and\n"
    "holds the part of its ranks. A job that lost nodes goes on with as many ranks on\n"
    "those that are left (kvwheel run --relaunch): the parts that were lost are\n"
    "filled by replaying the token ids, and the others compared with the replay.\n"
    "\n"
    "  --model DIR         Hugging Face folder: config.json, model.safetensors (or\n"
    "                      its index and shards); f32, f16 or bf16\n"
    "  --prompt TEXT       for models with a vocabulary of 256, one token per byte\n"
    "  --prompt-ids LIST   token ids, separated by commas, for any vocabulary\n"
    "  --tokens N          tokens to generate in all, resumed ones included (256);\n"
    "                      0 reads the prompt only\n"
    "  --window W          rows a query sees, sink and itself included (256)\n"
    "  --sink S            first rows that never leave, S < W (4)\n"
    "  --positions RULE    window (default): index within the window, as in\n"
    "                      StreamingLLM; absolute: row number since the start\n"
    "  --dtype TYPE        of stored K and V: f32 (default), bf16, f16\n"
    "  --greedy            always the likeliest token\n"
    "  --temperature T     of sampling (1.0)\n"
    "  --seed N            of sampling (0)\n"
    "  --chunk N           rows of a step while the prompt is read (32)\n"
    "  --row-parts P       ranks that share the rows of the same heads: R = P times\n"
    "                      the ranks that share heads (1)\n"
    "  --row-block N       rows in a row of one of them (16)\n"
    "  --resume NAME       go on with the cache NAME, or begin it; it is kept when\n"
    "                      the run ends or dies. Settings that are not given are the\n"
    "                      cache's; those that differ are refused\n"
    "  --nll FILE          score FILE instead: its bytes, or with another vocabulary\n"
    "                      than 256 the ids written in it. The first is given\n"
    "  --nll-chunk N       rows of a step while scoring (1); changes no digit\n"
    "  --logits FILE       write the logits of every row that is fed, raw f32\n"
    "  --json              one JSON object a line on stdout: {row, token} each, then\n"
    "                      the result: tokens, text (null unless bytes), window,\n"
    "                      sink, rolls (how often the W - S rolling rows were\n"
    "                      replaced), rows, bytes_new_rows (what the new rows need),\n"
    "                      bytes_written (what was written: the same, nothing is\n"
    "                      copied), tokens_per_second, ranks, row_parts, nodes,\n"
    "                      rebuilt (parts that were lost and filled), positions,\n"
    "                      dtype, kernels (those used), seed, resumed_from (row or\n"
    "                      null)\n"
    "  --kernels NAME      as on a CPU that can do no more than these need: ref\n"
    "                      (plain C), avx2, avx512, avx512_bf16 (default: the best\n"
    "                      that this CPU has)\n"
    "  --socket PATH       of kvwheeld (default: $KVWHEEL_SOCKET, or the user's own)\n"
    "  --help\n"
    "\n"
    "Without --json the generated text goes to stdout as it comes (ids, if the\n"
    "vocabulary is not 256), progress to stderr.\n"
    "\n"
    "exit: 0 done, 2 usage, 3 model refused, 4 kvwheel refused, 5 --resume: another\n"
    "run's cache, 6 file or output, 7 number or place of ranks, 8 out of memory, 104\n"
    "a rank on another node did not answer\n";

enum { /* long options without a letter */
       FLAG_MODEL = 1,
       FLAG_PROMPT,
       FLAG_PROMPT_IDS,
       FLAG_TOKENS,
       FLAG_WINDOW,
       FLAG_SINK,
       FLAG_POSITIONS,
       FLAG_DTYPE,
       FLAG_GREEDY,
       FLAG_TEMPERATURE,
       FLAG_SEED,
       FLAG_CHUNK,
       FLAG_ROW_PARTS,
       FLAG_ROW_BLOCK,
       FLAG_RESUME,
       FLAG_NLL,
       FLAG_NLL_CHUNK,
       FLAG_LOGITS,
       FLAG_JSON,
       FLAG_KERNELS,
       FLAG_SOCKET,
       FLAG_HELP,
};

static const struct option flags[] = {
    {"model", required_argument, NULL, FLAG_MODEL},
    {"prompt", required_argument, NULL, FLAG_PROMPT},
    {"prompt-ids", required_argument, NULL, FLAG_PROMPT_IDS},
    {"tokens", required_argument, NULL, FLAG_TOKENS},
    {"window", required_argument, NULL, FLAG_WINDOW},
    {"sink", required_argument, NULL, FLAG_SINK},
    {"positions", required_argument, NULL, FLAG_POSITIONS},
    {"dtype", required_argument, NULL, FLAG_DTYPE},
    {"greedy", no_argument, NULL, FLAG_GREEDY},
    {"temperature", required_argument, NULL, FLAG_TEMPERATURE},
    {"seed", required_argument, NULL, FLAG_SEED},
    {"chunk", required_argument, NULL, FLAG_CHUNK},
    {"row-parts", required_argument, NULL, FLAG_ROW_PARTS},
    {"row-block", required_argument, NULL, FLAG_ROW_BLOCK},
    {"resume", required_argument, NULL, FLAG_RESUME},
    {"nll", required_argument, NULL, FLAG_NLL},
    {"nll-chunk", required_argument, NULL, FLAG_NLL_CHUNK},
    {"logits", required_argument, NULL, FLAG_LOGITS},
    {"json", no_argument, NULL, FLAG_JSON},
    {"kernels", required_argument, NULL, FLAG_KERNELS},
    {"socket", required_argument, NULL, FLAG_SOCKET},
    {"help", no_argument, NULL, FLAG_HELP},
    {NULL, 0, NULL, 0},
};

static const struct flag_word type_words[] = {
    {"f32", KVW_F32}, {"bf16", KVW_BF16}, {"f16", KVW_F16}, {NULL, 0}};
static const struct flag_word positions_words[] = {
    {"window", KVW_POSITIONS_WINDOW}, {"absolute", KVW_POSITIONS_ABSOLUTE}, {NULL, 0}};

const char *settings_type_name(uint32_t type)
{
    return flag_name(type_words, type);
}

const char *settings_positions_name(uint32_t positions)
{
    return flag_name(positions_words, positions);
}

static int parse_temperature(const char *text, float *temperature, struct fail *fail)
{
    char *end;
    float parsed = strtof(text, &end);

    if (end == text || *end != '\0' || !(parsed > 0) || !isfinite(parsed))
        return fail_set(fail, FAIL_USAGE,
                        "--temperature: need a number above 0 (for the likeliest token "
                        "--greedy), have %.40s",
                        text);
    *temperature = parsed;
    return 0;
}

/* A flag that names a setting. */
static int parse_setting(int flag, const char *text, struct options *options,
                         struct fail *fail)
{
    struct settings *to = &options->settings;

    switch (flag) {
    case FLAG_WINDOW:
        options->given |= GIVEN_WINDOW;
        return flag_number("--window", text, OPTIONS_ROWS_MAX, &to->window_rows, fail);
    case FLAG_SINK:
        options->given |= GIVEN_SINK;
        return flag_number("--sink", text, OPTIONS_ROWS_MAX, &to->sink_rows, fail);
    case FLAG_POSITIONS:
        options->given |= GIVEN_POSITIONS;
        return flag_word("--positions", text, positions_words, &to->positions, fail);
    case FLAG_DTYPE:
        options->given |= GIVEN_TYPE;
        return flag_word("--dtype", text, type_words, &to->type, fail);
    case FLAG_GREEDY:
        options->given |= GIVEN_GREEDY;
        to->sampling.is_greedy = true;
        return 0;
    case FLAG_TEMPERATURE:
        options->given |= GIVEN_TEMPERATURE;
        return parse_temperature(text, &to->sampling.temperature, fail);
    case FLAG_SEED:
        options->given |= GIVEN_SEED;
        return flag_number("--seed", text, INT64_MAX, &to->sampling.seed, fail);
    case FLAG_CHUNK:
        options->given |= GIVEN_CHUNK;
        return flag_count("--chunk", text, OPTIONS_CHUNK_MAX, &to->chunk_rows, fail);
    case FLAG_ROW_PARTS:
        options->given |= GIVEN_ROW_PARTS;
        return flag_count("--row-parts", text, RANKS_MAX, &to->row_parts, fail);
    case FLAG_ROW_BLOCK:
        options->given |= GIVEN_ROW_BLOCK;
        return flag_count("--row-block", text, OPTIONS_CHUNK_MAX, &to->row_block, fail);
    case FLAG_TOKENS:
        return flag_number("--tokens", text, OPTIONS_ROWS_MAX, &options->n_tokens,
                           fail);
    case FLAG_NLL_CHUNK:
        return flag_count("--nll-chunk", text, OPTIONS_CHUNK_MAX,
                          &options->nll_chunk_rows, fail);
    default:
        return fail_set(fail, FAIL_USAGE, "unknown flag; --help lists them");
    }
}

static int parse_flag(int flag, const char *text, struct options *options,
                      struct fail *fail)
{
    switch (flag) {
    case FLAG_MODEL:
        options->model = text;
        return 0;
    case FLAG_PROMPT:
        options->prompt = text;
        return 0;
    case FLAG_PROMPT_IDS:
        options->prompt_ids = text;
        return 0;
    case FLAG_RESUME:
        options->resume = text;
        return 0;
    case FLAG_NLL:
        options->nll = text;
        return 0;
    case FLAG_LOGITS:
        options->logits = text;
        return 0;
    case FLAG_KERNELS:
        options->kernels = text;
        return kernels_check(text, fail);
    case FLAG_SOCKET:
        options->socket = text;
        return 0;
    case FLAG_JSON:
        options->is_json = true;
        return 0;
    case FLAG_HELP:
        options->is_help = true;
        return 0;
    default:
        return parse_setting(flag, text, options, fail);
    }
}

/* What flags say together. W > S is checked once the settings are whole. */
static int check_together(const struct options *options, struct fail *fail)
{
    const int n_texts = (options->prompt != NULL) + (options->prompt_ids != NULL) +
                        (options->nll != NULL);

    if (options->model == NULL)
        return fail_set(fail, FAIL_USAGE, "--model: need the folder of a model");
    if (n_texts > 1)
        return fail_set(fail, FAIL_USAGE,
                        "--prompt, --prompt-ids, --nll: need one of them, have %d",
                        n_texts);
    if (n_texts == 0 && options->resume == NULL)
        return fail_set(fail, FAIL_USAGE, "--prompt: need a prompt to go on from");
    if (options->nll != NULL && options->resume != NULL)
        return fail_set(fail, FAIL_USAGE, "--resume: scoring (--nll) keeps nothing");
    if ((options->given & GIVEN_GREEDY) &&
        (options->given & (GIVEN_TEMPERATURE | GIVEN_SEED)))
        return fail_set(fail, FAIL_USAGE,
                        "--greedy: takes no --temperature and no --seed");
    return 0;
}

int options_parse(int argc, char **argv, void *parsed, struct fail *fail)
{
    struct options *options = parsed;
    int flag;

    *options = (struct options){
        .n_tokens = 256,
        .nll_chunk_rows = 1,
        .settings = {.window_rows = 256,
                     .sink_rows = 4,
                     .chunk_rows = 32,
                     .row_parts = 1,
                     .row_block = 16,
                     .positions = KVW_POSITIONS_WINDOW,
                     .type = KVW_F32,
                     .sampling = {.temperature = 1.0f}},
    };
    while ((flag = flag_next(argc, argv, flags, fail)) > 0) {
        if (parse_flag(flag, optarg, options, fail) != 0)
            return -EINVAL;
    }
    if (flag < 0 || options->is_help)
        return flag < 0 ? flag : 1;
    if (options->nll != NULL)
        options->n_tokens = 0;
    return check_together(options, fail);
}
