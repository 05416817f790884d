/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of --help. */
#ifndef KVW_CLIENT_CLI_HELP_H
#define KVW_CLIENT_CLI_HELP_H

extern const char help_head[];
extern const char help_tail[];
extern const char help_start[];
extern const char help_stop[];
extern const char help_restart[];
extern const char help_run[];
extern const char help_status[];
extern const char help_doctor[];
extern const char help_create[];
extern const char help_size[];
extern const char help_plan[];
extern const char help_move[];
extern const char help_topo[];
extern const char help_ls[];
extern const char help_show[];
extern const char help_verify[];
extern const char help_logs[];
extern const char help_who[];
extern const char help_kick[];
extern const char help_rm[];
extern const char help_gc[];

#endif
