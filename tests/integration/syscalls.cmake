# SPDX-License-Identifier: Apache-2.0
kvw_add_test(syscalls PLAIN LABEL integration SOURCES syscalls.c LIBS kvwheel-internal)
# The library is linked statically here, so that its calls of malloc can be counted.
target_link_options(syscalls PRIVATE
  -Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=realloc -Wl,--wrap=free)
add_dependencies(syscalls kvwheeld)
