/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes are looked up in /sys; memory is bound by mbind(2) and then written once. */
#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench/pages.h"

#define NODES_MAX BENCH_VARIANTS_MAX
#define MEMORY_BYTES (32ul << 20) /* more than most caches hold for one core */
#define WORD_BITS (8 * sizeof(unsigned long))

struct node {
    unsigned number;
    cpu_set_t cpus; /* empty: memory only */
    char label[32];
    uint64_t *memory;
};

struct matrix {
    uint32_t n_nodes;
    struct node node[NODES_MAX];
    double rate[2][NODES_MAX][NODES_MAX]; /* read, write; by CPUs of; memory of; GB/s */
};

/* "0-3,8" into a set. */
static void parse(const char *list, cpu_set_t *set)
{
    CPU_ZERO(set);
    while (*list >= '0' && *list <= '9') {
        char *end;
        unsigned long first = strtoul(list, &end, 10);
        unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++)
            CPU_SET(i, set);
        list = *end == ',' ? end + 1 : end;
    }
}

static void read_set(const char *path, cpu_set_t *set)
{
    char line[4096] = "";
    FILE *file = fopen(path, "re");

    CPU_ZERO(set);
    if (file != NULL) {
        if (fgets(line, sizeof line, file) != NULL)
            parse(line, set);
        fclose(file);
    }
}

static int bind_memory(struct node *node)
{
    unsigned long mask[1024 / WORD_BITS] = {0};

    void *memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return bench_fail("memory", -errno);
    mask[node->number / WORD_BITS] = 1ul << node->number % WORD_BITS;
    if (syscall(SYS_mbind, memory, MEMORY_BYTES, MPOL_PREFERRED, mask, 1025, 0) < 0) {
        int error = -errno;
        (void)munmap(memory, MEMORY_BYTES);
        return bench_fail("mbind", error);
    }
    memset(memory, 1, MEMORY_BYTES);
    node->memory = memory;
    return 0;
}

static int find_nodes(struct matrix *matrix)
{
    cpu_set_t numbers;
    cpu_set_t own;
    char path[96];

    read_set("/sys/devices/system/node/has_memory", &numbers);
    if (CPU_COUNT(&numbers) == 0)
        CPU_SET(0, &numbers);
    (void)sched_getaffinity(0, sizeof own, &own);
    for (unsigned i = 0; i < CPU_SETSIZE && matrix->n_nodes < NODES_MAX; i++) {
        if (!CPU_ISSET(i, &numbers))
            continue;
        struct node *node = &matrix->node[matrix->n_nodes++];
        node->number = i;
        snprintf(node->label, sizeof node->label, "memory of node %u", i);
        snprintf(path, sizeof path, "/sys/devices/system/node/node%u/cpulist", i);
        read_set(path, &node->cpus);
        CPU_AND(&node->cpus, &node->cpus, &own);
        int error = bind_memory(node);
        if (error != 0)
            return error;
    }
    return 0;
}

static int read_memory(void *context, struct bench_samples *samples)
{
    const struct node *node = context;
    uint64_t sum = 0;

    const uint64_t begun_ns = bench_now_ns();
    for (size_t i = 0; i < MEMORY_BYTES / 8; i += 8) /* a line at a time */
        sum += node->memory[i];
    bench_touch((const void *)(uintptr_t)sum);
    bench_add(samples, bench_now_ns() - begun_ns, 1);
    return 0;
}

static int write_memory(void *context, struct bench_samples *samples)
{
    const struct node *node = context;

    const uint64_t begun_ns = bench_now_ns();
    memset(node->memory, 2, MEMORY_BYTES);
    bench_touch(node->memory);
    bench_add(samples, bench_now_ns() - begun_ns, 1);
    return 0;
}

/* The rows of the matrix for one node's CPUs; a report keeps the strings. */
static int compare(struct bench *bench, struct matrix *matrix, uint32_t from,
                   bool is_write)
{
    static char groups[2 * NODES_MAX][48];
    struct bench_variant variants[NODES_MAX];
    char *group = groups[2 * from + is_write];

    snprintf(group, sizeof groups[0], "%s by CPUs of node %u",
             is_write ? "write" : "read", matrix->node[from].number);
    for (uint32_t i = 0; i < matrix->n_nodes; i++)
        variants[i] = (struct bench_variant){
            .name = matrix->node[i].label,
            .floor = {i == from ? NULL : matrix->node[from].label},
            .each = is_write ? write_memory : read_memory,
            .context = &matrix->node[i]};
    int error = bench_compare(bench, group, variants, matrix->n_nodes);
    if (error != 0)
        return error;
    bench_rate(bench, matrix->n_nodes, (double)MEMORY_BYTES, "GB/s");
    const struct bench_result *row =
        bench->results + bench->n_results - matrix->n_nodes;
    for (uint32_t i = 0; i < matrix->n_nodes; i++)
        matrix->rate[is_write][from][i] = row[i].p50 > 0 ? row[i].work / row[i].p50 : 0;
    return 0;
}

/* Node by node, beside the report. */
static void print_matrix(const struct matrix *matrix, bool is_write)
{
    fprintf(stderr, "numa: %-18s", is_write ? "write, GB/s" : "read, GB/s");
    for (uint32_t i = 0; i < matrix->n_nodes; i++)
        fprintf(stderr, "  memory %-3u", matrix->node[i].number);
    for (uint32_t from = 0; from < matrix->n_nodes; from++) {
        if (CPU_COUNT(&matrix->node[from].cpus) == 0)
            continue;
        fprintf(stderr, "\nnuma: CPUs of node %-5u", matrix->node[from].number);
        for (uint32_t i = 0; i < matrix->n_nodes; i++)
            fprintf(stderr, "  %10.1f", matrix->rate[is_write][from][i]);
    }
    fprintf(stderr, "\n");
}

int numa_run(struct bench *bench)
{
    static struct matrix matrix; /* labels are the report's until the end */
    cpu_set_t before;

    (void)sched_getaffinity(0, sizeof before, &before);
    int error = find_nodes(&matrix);
    for (uint32_t from = 0; from < matrix.n_nodes && error == 0; from++) {
        if (CPU_COUNT(&matrix.node[from].cpus) == 0)
            continue; /* memory only */
        if (sched_setaffinity(0, sizeof(cpu_set_t), &matrix.node[from].cpus) < 0) {
            error = bench_fail("bind to a node's CPUs", -errno);
            break;
        }
        error = compare(bench, &matrix, from, false);
        if (error == 0)
            error = compare(bench, &matrix, from, true);
    }
    (void)sched_setaffinity(0, sizeof before, &before);
    for (int is_write = 0; is_write < 2 && error == 0; is_write++)
        print_matrix(&matrix, is_write);
    for (uint32_t i = 0; i < matrix.n_nodes; i++) {
        if (matrix.node[i].memory != NULL)
            (void)munmap(matrix.node[i].memory, MEMORY_BYTES);
    }
    return error;
}
