/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process for test_cli.sh: connects to the default socket, which may start a daemon,
 * says the daemon's pid, and, if asked, attaches and stays until its standard input
 * ends.
 *
 *     test_cli_worker [NAME RANK]      RANK "reader": read only
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"

int main(int argc, char **argv)
{
    struct kvw_client *client;
    struct kvw_cache *cache = NULL;
    char byte;

    if (kvw_connect(NULL, &client) < 0) {
        fprintf(stderr, "connect: %s\n", kvw_last_error());
        return 1;
    }
    printf("%u\n", client->daemon_pid);
    if (argc == 3) {
        uint32_t rank = strcmp(argv[2], "reader") == 0
                            ? KVW_READER
                            : (uint32_t)strtoul(argv[2], NULL, 10);
        if (kvw_attach(client, argv[1], rank, NULL, &cache) < 0) {
            fprintf(stderr, "attach: %s\n", kvw_last_error());
            return 1;
        }
        printf("attached\n");
        fflush(stdout);
        while (read(STDIN_FILENO, &byte, 1) > 0)
            ;
    }
    kvw_disconnect(client);
    return 0;
}
