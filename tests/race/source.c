/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One source of the product, or a mutant of it, compiled over shim.h. By way of this file
 * so that tools that look at compile_commands.json meet each source of the product once.
 */
#include RACE_SOURCE
