/* SPDX-License-Identifier: Apache-2.0 */
/* See environment.h. Everything here is optional: a host that hides a file still gets
 * its figures. */
#include "bench/environment.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include <kvwheel/kvwheel.h>

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static void copy_text(char *to, size_t to_bytes, const char *from)
{
    size_t n_bytes = strcspn(from, "\n");

    (void)snprintf(to, to_bytes, "%.*s", (int)n_bytes, from);
}

/* The first line of a file. */
static void read_line(const char *path, char *line, size_t line_bytes)
{
    char text[256];

    copy_text(line, line_bytes, "unknown");
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    if (fgets(text, sizeof text, file) != NULL)
        copy_text(line, line_bytes, text);
    (void)fclose(file);
}

/* Of "always [madvise] never", the one that holds. */
static void read_choice(const char *path, char *choice, size_t choice_bytes)
{
    char line[128];

    read_line(path, line, sizeof line);
    char *begin = strchr(line, '[');
    char *end = begin == NULL ? NULL : strchr(begin, ']');
    if (end != NULL)
        *end = 0;
    copy_text(choice, choice_bytes, end == NULL ? line : begin + 1);
}

static void read_cpu(char *cpu, size_t cpu_bytes)
{
    char line[256];

    copy_text(cpu, cpu_bytes, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL) {
        char *value = strchr(line, ':');
        if (value == NULL || strncmp(line, "model name", 10) != 0)
            continue;
        copy_text(cpu, cpu_bytes, value + strspn(value, ": \t"));
        break;
    }
    (void)fclose(file);
}

void bench_environment_read(struct bench_environment *environment)
{
    struct utsname name;
    cpu_set_t cpus;
    struct tm utc;
    const time_t now = time(NULL);

    *environment =
        (struct bench_environment){.compiler = COMPILER, .version = kvw_version()};
    read_cpu(environment->cpu, sizeof environment->cpu);
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        environment->n_cores = (uint32_t)CPU_COUNT(&cpus);
    if (uname(&name) == 0)
        (void)snprintf(environment->kernel, sizeof environment->kernel, "%.30s %.60s",
                       name.sysname, name.release);
    read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
              environment->governor, sizeof environment->governor);
    read_choice("/sys/kernel/mm/transparent_hugepage/enabled", environment->huge_pages,
                sizeof environment->huge_pages);
    read_choice("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                environment->huge_pages_shared, sizeof environment->huge_pages_shared);
    read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource",
              environment->clock_source, sizeof environment->clock_source);
    if (getloadavg(environment->load, 3) != 3)
        memset(environment->load, 0, sizeof environment->load);
    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(environment->date, sizeof environment->date,
                       "%Y-%m-%dT%H:%M:%SZ", &utc);
}
